"""Statistics of a scheduler: its requests now, and its counters so far."""

from __future__ import annotations

from pageant.protocol.message import Message, Request


class SchedulerStatistics(Message, frozen=True, kw_only=True):
    """Requests as of now, and counters since the start."""

    num_waiting: int
    """Requests that have not been admitted, or were preempted."""
    num_running: int
    """Requests that hold KV memory."""
    counters: dict[str, int]
    """Events since the start, by name."""
    idle_seconds: float = 0.0
    """Time since a request was open; 0 while one is."""


class GetSchedulerStatistics(Request[SchedulerStatistics], frozen=True, kw_only=True):
    """Ask the scheduler for its counters."""
