"""Waits for work of torch.distributed that another thread can end."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pageant.kernels.collectives.base import GroupBroken

__all__ = ["Waiting"]

_GRACE_SECONDS = 0.2


class Waiting:
    """Runs blocking calls in a thread of its own, for a caller who may be told to give up.

    Work of Gloo has no wait that can be interrupted. A wait that was given up goes on in the thread until its own
    timeout ends it, and the thread with it.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds
        """For how long a call may take."""
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None
        self._broken: GroupBroken | None = None
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise GroupBroken if the group is broken."""
        if self._broken is not None:
            raise GroupBroken(str(self._broken), self._broken.rank)

    def break_off(self, reason: str, rank: int | None = None) -> GroupBroken:
        """End the wait of the present call and refuse later ones. The first reason is kept, and returned."""
        with self._changed:
            if self._broken is None:
                self._broken = GroupBroken(reason, rank)
                self._calls.put(None)
                self._changed.notify_all()
            return self._broken

    def run(self, call: Callable[[], object], described: str) -> None:
        """Run a call, and wait for its end; one at a time. Raises GroupBroken if it raises or is given up."""
        self.check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="pageant-collectives", daemon=True)
            self._thread.start()
        self._ended, self._error = False, None
        self._calls.put(call)
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._ended or self._broken is not None, self.deadline_seconds
            )
        if not came:
            self.break_off(f"{described} took longer than {self.deadline_seconds:g} s")
        self.check()
        if self._error is not None:
            raise self.break_off(f"{described} failed: {self._error}") from self._error

    def close(self, reason: str, rank: int, held: list[object], unwaited: Sequence[Any]) -> None:
        """Break the group, and free what is held: now, or once the work that goes on has ended.

        A process group whose work goes on would keep the interpreter until that work's timeout, if it were freed.
        """
        self.break_off(reason, rank)
        worker = self._thread

        def free() -> None:
            if worker is not None:
                worker.join()
            for work in unwaited:
                with contextlib.suppress(RuntimeError):
                    work.wait()
            held.clear()

        if worker is not None:
            worker.join(_GRACE_SECONDS)
        if (worker is None or not worker.is_alive()) and all(work.is_completed() for work in unwaited):
            free()
        else:
            threading.Thread(target=free, name="pageant-collectives-close", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            error: Exception | None = None
            try:
                call()
            except Exception as raised:
                error = raised
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify_all()
