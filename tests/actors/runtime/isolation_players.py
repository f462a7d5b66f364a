"""A function that ends its process in several ways, for test_isolation.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def open_player(argument: str) -> Callable[[bytes], bytes]:
    def play(data: bytes) -> bytes:
        what, _, rest = data.partition(b" ")
        match what:
            case b"echo":
                return argument.encode() + rest
            case b"pid":
                return str(os.getpid()).encode()
            case b"overflow":
                signal.raise_signal(signal.SIGSEGV)
            case b"abort":
                os.abort()
            case b"exit":
                os._exit(3)
            case b"spin":
                while True:
                    pass
            case b"wait":
                time.sleep(float(rest))
                return b"waited"
            case b"fill":
                held = []
                while True:
                    held.append(bytearray(1 << 20))
            case b"print":
                print("not an answer", flush=True)
                os.write(1, b"neither is this")
                return b"printed"
        raise AssertionError(what)

    return play
