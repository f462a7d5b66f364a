"""Counters of messages between a node and others, by actor and kind; and the process's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pageant.protocol.supervision import Traffic

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class TrafficCounts:
    """Counts messages and bytes by actor of this node and kind. Replies count for the node, which knows the
    asker.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], list[int]] = {}
        self._received: dict[tuple[str, str], list[int]] = {}

    def sent(self, actor: str, kind: str, frames: Sequence[Any]) -> None:
        """Count a message that left."""
        _count(self._sent, (actor, kind), frames)

    def received(self, actor: str, kind: str, frames: Sequence[Any]) -> None:
        """Count a message that came."""
        _count(self._received, (actor, kind), frames)

    def statistics(self) -> tuple[Traffic, ...]:
        """Return all counters."""
        nothing = (0, 0)
        found = []
        for actor, kind in sorted(self._sent.keys() | self._received.keys()):
            sent, sent_bytes = self._sent.get((actor, kind), nothing)
            received, received_bytes = self._received.get((actor, kind), nothing)
            found.append(
                Traffic(
                    actor=actor,
                    kind=kind,
                    sent=sent,
                    sent_bytes=sent_bytes,
                    received=received,
                    received_bytes=received_bytes,
                )
            )
        return tuple(found)


def _count(counts: dict[tuple[str, str], list[int]], key: tuple[str, str], frames: Sequence[Any]) -> None:
    entry = counts.get(key)
    if entry is None:
        entry = counts[key] = [0, 0]
    entry[0] += 1
    for frame in frames:
        entry[1] += frame.nbytes if hasattr(frame, "nbytes") else len(frame)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not tell."""
    try:
        # Each call may wait for the GIL, so that there are as few as possible.
        file = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            return int(os.read(file, 256).split()[1]) * _PAGE
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return 0
