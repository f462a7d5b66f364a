"""The process in which an `Isolation` calls its function: `python -m ... OPENER ARGUMENT MEMORY_BYTES STACK_BYTES`.

It ends when its standard input does, and leaves no core. Nothing that the function prints reaches the pipe of answers.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

from pageant.actors.runtime.classes import load_object
from pageant.actors.runtime.isolation import LENGTH_BYTES, READY

NICENESS = 10
"""Added to the parent's: inputs that take long do not slow down what computes answers."""


def main(arguments: list[str]) -> int:
    """Answer inputs until there are no more."""
    opener, argument, memory_bytes, stack_bytes = arguments
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function: Callable[[bytes], bytes] = load_object(opener, "opener")(argument)
    _limit_memory(int(memory_bytes))
    threading.stack_size(int(stack_bytes))
    serving = threading.Thread(target=_serve_caller, args=(function, sys.stdin.buffer, answers))
    serving.start()
    serving.join()
    return 0


def _limit_memory(more: int) -> None:
    """Allow `more` bytes of address space beyond what the process has now."""
    with open("/proc/self/statm") as file:
        present = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + more, present + more))


def _serve_caller(function: Callable[[bytes], bytes], inputs: BinaryIO, answers: BinaryIO) -> None:
    """Serve until the process that asks ends, whatever it was about to say or to hear."""
    with contextlib.suppress(BrokenPipeError):
        _serve(function, inputs, answers)


def _serve(function: Callable[[bytes], bytes], inputs: BinaryIO, answers: BinaryIO) -> None:
    _send(answers, READY)
    while head := inputs.read(LENGTH_BYTES):
        count = int.from_bytes(head, "little")
        data = inputs.read(count)
        if len(data) < count:
            return
        try:
            answer = function(data)
        except MemoryError:
            os._exit(1)
        _send(answers, answer)


def _send(answers: BinaryIO, data: bytes) -> None:
    answers.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
