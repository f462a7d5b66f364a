"""Processor time of other processes, as Linux counts it."""

from __future__ import annotations

import os

__all__ = ["processor_seconds"]

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process so far, in seconds.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    user, system = int(fields[11]), int(fields[12])  # fields 14 and 15 of proc(5)
    return (user + system) / _TICKS_PER_SECOND
