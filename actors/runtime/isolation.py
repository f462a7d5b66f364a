"""Calls of functions that may end their process, in processes of their own.

Native code that a request feeds (a grammar compiler, an image decoder) can overflow its stack without raising
an exception. `Isolation` calls such a function in a small disposable process. The death of that process is an
answer about one input, and harms no other request. A standby process is at hand, so that the next input does
not wait for a new one.

Threads of the caller use an `Isolation` and block in it: an actor calls it by `offload`. The child is
`pageant.actors.runtime.isolated`. Messages between the two are bytes with their length before them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from pageant.actors.runtime.processor_time import processor_seconds

LENGTH_BYTES = 4
ANSWER_BYTES_MAX = 1 << 26
READY = b"ready"
START_SECONDS_MAX = 60.0
WALL_FACTOR = 6.0
_MODULE = "pageant.actors.runtime.isolated"


class IsolatedDeath(Exception):
    """The process ended while it had this input, or was killed for the time that it took. The message has the
    cause.
    """


@dataclass(frozen=True)
class IsolatedLimits:
    """Limits of a process for one input.

    Attributes:
        seconds: processor time after which the process is killed. By the clock it may take `WALL_FACTOR` times as
            long, since on a busy machine the processor is others' most of the time.
        memory_bytes: address space beyond what the process has when it is ready.
        answer_bytes: the most bytes of an answer.
        stack_bytes: stack of the thread that calls the function. The caller's own threads should have more.
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    answer_bytes: int = ANSWER_BYTES_MAX
    stack_bytes: int = 4 << 20


class Isolation:
    """Calls one function in processes of its own. May be used by several threads.

    Args:
        opener: `module:function`. In each process, `function(argument)` returns the function from bytes to bytes that
            is called.
        argument: for the opener.
        limits: of each call.
        standbys: processes that wait for inputs, once there was one, or `prepare` was called.
    """

    def __init__(
        self, opener: str, argument: str, limits: IsolatedLimits | None = None, standbys: int = 1
    ) -> None:
        self._limits = limits or IsolatedLimits()
        self._command = [
            *(sys.executable, "-m", _MODULE, opener, argument),
            *(str(self._limits.memory_bytes), str(self._limits.stack_bytes)),
        ]
        self._standbys = standbys
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []  # under the lock, as all that follows
        self._busy: set[_Worker] = set()
        self._closed = False
        self.deaths = 0

    def call(self, data: bytes) -> bytes:
        """Return what the function returns for `data`. Blocks.

        Raises:
            IsolatedDeath: the process died of it, or it took too long.
            OSError: no process can be started, or it ended before it had this input.
        """
        worker = self._take()
        try:
            answer = worker.call(data)
        except BaseException as error:
            self._give_back(worker, died=isinstance(error, IsolatedDeath), again=False)
            raise
        self._give_back(worker, died=False, again=True)
        return answer

    def _take(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise IsolatedDeath("its process was ended with its actor")
            worker = self._next_idle() or _Worker(self._command, self._limits)
            self._busy.add(worker)
            self._start_standbys()
            return worker

    def prepare(self) -> None:
        """Start the processes that wait for inputs. Returns at once: they get ready meanwhile.

        Raises:
            OSError: no process can be started.
        """
        with self._lock:
            if not self._closed:
                self._start_standbys()

    def _start_standbys(self) -> None:
        while len(self._idle) < self._standbys:
            self._idle.append(_Worker(self._command, self._limits))

    def _next_idle(self) -> _Worker | None:
        """Take a standby that is still running; the one that had an input last, since a new one may not be
        ready yet.

        A standby that has ended meanwhile says nothing about the next input.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running:
                return worker
            worker.kill()
        return None

    def _give_back(self, worker: _Worker, *, died: bool, again: bool) -> None:
        """Keep a process for the next input, if it is fit for that and not one too many; else end it."""
        with self._lock:
            self._busy.discard(worker)
            self.deaths += died
            keep = again and not self._closed and len(self._idle) <= self._standbys
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.kill()

    def close(self) -> None:
        """End every process. Calls that wait for one raise `IsolatedDeath`."""
        with self._lock:
            self._closed = True
            idle, busy = self._idle.copy(), tuple(self._busy)
            self._idle.clear()
        for worker in idle:
            worker.kill()
        for worker in busy:
            worker.end()  # the thread whose call it has reads its pipe's end, and closes the pipe


class _Worker:
    """Process that has one input at a time."""

    def __init__(self, command: list[str], limits: IsolatedLimits) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # a Ctrl-C is for the parent to act on
        )
        self._is_ready = False

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def call(self, data: bytes) -> bytes:
        """Return the answer to `data`.

        Raises:
            IsolatedDeath: the process has ended, or has to be.
            OSError: it ended before it was ready for any input.
        """
        self._await_ready()
        assert self._process.stdin is not None, "it is a pipe"
        patience = _Patience(self._process.pid, self._limits.seconds)
        try:
            self._process.stdin.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
            self._process.stdin.flush()
        except OSError:
            raise self._death() from None
        return self._receive(patience)

    def _await_ready(self) -> None:
        if self._is_ready:
            return
        try:
            said = self._receive(_Patience(self._process.pid, START_SECONDS_MAX))
        except IsolatedDeath as error:
            raise OSError(f"{_MODULE} did not start: {error}") from None
        if said != READY:
            raise OSError(f"{_MODULE} did not start: {said[:500].decode(errors='replace')}")
        self._is_ready = True

    def _receive(self, patience: _Patience) -> bytes:
        length = int.from_bytes(self._read(LENGTH_BYTES, patience), "little")
        if length > (most := self._limits.answer_bytes):
            raise IsolatedDeath(f"its answer has {length} bytes; at most {most} are taken")
        return self._read(length, patience)

    def _read(self, count: int, patience: _Patience) -> bytes:
        assert self._process.stdout is not None, "it is a pipe"
        pipe, read = self._process.stdout.fileno(), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while len(read) < count:
                if not selector.select(max(0.0, left := patience.seconds_left())):
                    if left > 0:
                        continue
                    raise IsolatedDeath(f"it takes more than {patience.seconds:g} seconds")
                piece = os.read(pipe, count - len(read))
                if not piece:
                    raise self._death()
                read += piece
        return bytes(read)

    def _death(self) -> IsolatedDeath:
        code = self._process.wait()
        if code < 0:
            return IsolatedDeath(f"its process was ended by signal {-code} ({signal.strsignal(-code)})")
        return IsolatedDeath(f"its process ended with exit code {code}")

    def end(self) -> None:
        """End the process, if it still runs, and wait for that. Any thread may do so."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """End the process and close its pipes, from which no other thread may be reading."""
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class _Patience:
    """Time that a process may still take for the input that it has now."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self.seconds = seconds
        self._end = time.monotonic() + WALL_FACTOR * seconds
        self._end_of_processor_time = self._processor_seconds() + seconds

    def seconds_left(self) -> float:
        """Return after how many seconds the process is over its time at the earliest; 0 or less is now."""
        return min(self._end - time.monotonic(), self._end_of_processor_time - self._processor_seconds())

    def _processor_seconds(self) -> float:
        """Return the processor time of all threads of the process; 0 if it has ended."""
        try:
            return processor_seconds(self._pid)
        except OSError:
            return 0.0
