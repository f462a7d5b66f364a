"""Looking into a scheduler: how many requests there are, and what happened so far."""

from __future__ import annotations

from pageant.protocol.message import Message, Request


class SchedulerStatistics(Message, frozen=True, kw_only=True):
    """Requests as of now, and counters by name since the start."""

    num_waiting: int
    num_running: int
    counters: dict[str, int]


class GetSchedulerStatistics(Request[SchedulerStatistics], frozen=True, kw_only=True):
    """Ask the scheduler for its counters."""
