"""Requests that may be what kills the executor.

Each request counts the deaths of executors that were computing it. After two it is a suspect: it runs alone. If
the executor dies of that too, the request ends with an error; if it outlives that, having drawn more tokens than
were at hand when the executor died, it was another, and goes on beside the others. So one request that kills its
executor takes three lives, whoever stands beside it. A death that a request has outlived among others is not
counted any more either: so executors that die of something else, at any times, make few suspects.

Suspects in groups, halved until one is left, would be fewer trials, but each half that dies costs an executor, which
takes seconds to be back, where a trial takes two steps.
"""

from __future__ import annotations

from collections import deque

from pageant.actors.scheduler.request import ScheduledRequest

DEATHS_SUSPECT = 2


def count_death(request: ScheduledRequest, end: int) -> None:
    """An executor died that was computing this request, at most up to that position."""
    if _has_outlived(request):
        request.deaths = 0
    request.deaths = min(request.deaths + 1, DEATHS_SUSPECT)
    request.died_at = max(end, request.num_tokens)


def _has_outlived(request: ScheduledRequest) -> bool:
    """Whether all that was computed when an executor died has been computed again, and more: the first token after
    that is of a prompt as it were, and it may be one that is computed alone that kills."""
    return request.num_tokens > request.died_at + 1


def is_suspect(request: ScheduledRequest) -> bool:
    """Whether it is to run alone."""
    return request.deaths >= DEATHS_SUSPECT


class Quarantine:
    """The suspects that wait, and the one that is tried. While there are any, nobody else is admitted."""

    def __init__(self) -> None:
        self._waiting: deque[ScheduledRequest] = deque()
        self.on_trial: ScheduledRequest | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> bool:
        """Whether requests are tried."""
        return bool(self._waiting) or self.on_trial is not None

    def add(self, request: ScheduledRequest) -> None:
        """A suspect waits; one whose trial was broken off comes first."""
        if request is self.on_trial:
            self.on_trial = None
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)

    def take(self) -> ScheduledRequest | None:
        """The next to be tried."""
        if self.on_trial is None and self._waiting:
            self.on_trial = self._waiting.popleft()
            return self.on_trial
        return None

    def end(self, request: ScheduledRequest) -> None:
        """A request has ended, wherever it was."""
        if request is self.on_trial:
            self.on_trial = None
        elif is_suspect(request) and request in self._waiting:
            self._waiting.remove(request)

    def acquit(self) -> ScheduledRequest | None:
        """The one on trial, if it has survived that; from then on it is as others are."""
        request = self.on_trial
        if request is None or not _has_outlived(request):
            return None
        self.on_trial = None
        request.deaths = DEATHS_SUSPECT - 1
        return request
