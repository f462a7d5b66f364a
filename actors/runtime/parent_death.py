"""End a process together with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however the parent ends.

    The signal follows the parent's *thread* that started this process: start children from a thread that lasts. Systems
    other than Linux ignore the call.

    Args:
        parent: process id of the starter. Where it has ended before this call, this process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
