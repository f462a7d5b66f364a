"""Requests that may be the cause of an executor's death.

Each request counts the deaths of executors that were computing it. After two it is a suspect, and runs alone.
If the executor dies of that too, the request ends with an error. If the request survives, having sampled more
tokens than it had when the executor died, another one was the cause, and it runs beside others again. One
request that kills its executor therefore takes three lives, whatever runs beside it. A death that a request has
outlived among others is not counted any more, so that executors that die of something else make few suspects.

Suspects in groups, halved until one is left, would need fewer runs. Each half that dies costs an executor,
however, which takes seconds to be back, where running a suspect alone takes two steps.
"""

from __future__ import annotations

from collections import deque

from pageant.actors.scheduler.request import ScheduledRequest

DEATHS_SUSPECT = 2


def count_death(request: ScheduledRequest, end: int) -> None:
    """Count the death of an executor that was computing this request, up to the position `end` at most."""
    if _has_outlived(request):
        request.deaths = 0
    request.deaths = min(request.deaths + 1, DEATHS_SUSPECT)
    request.died_at = max(end, request.num_tokens)


def _has_outlived(request: ScheduledRequest) -> bool:
    """Tell whether all that was computed when an executor died has been computed again, and more.

    The first token after that is computed as part of a prompt. A token that is computed alone may be what
    kills, so that one more is needed.
    """
    return request.num_tokens > request.died_at + 1


def is_suspect(request: ScheduledRequest) -> bool:
    """Tell whether a request must run alone."""
    return request.deaths >= DEATHS_SUSPECT


class Quarantine:
    """The suspects: those that wait, and the one that runs alone. While there are any, no other request is
    admitted.
    """

    def __init__(self) -> None:
        self._waiting: deque[ScheduledRequest] = deque()
        # The suspect that runs alone, or None.
        self.running_alone: ScheduledRequest | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> bool:
        """Tell whether there are suspects."""
        return bool(self._waiting) or self.running_alone is not None

    def add(self, request: ScheduledRequest) -> None:
        """Queue a suspect; one whose run was interrupted comes first."""
        if request is self.running_alone:
            self.running_alone = None
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)

    def take(self) -> ScheduledRequest | None:
        """Return the suspect to run alone next, or None."""
        if self.running_alone is None and self._waiting:
            self.running_alone = self._waiting.popleft()
            return self.running_alone
        return None

    def end(self, request: ScheduledRequest) -> None:
        """Forget a request that has ended."""
        if request is self.running_alone:
            self.running_alone = None
        elif is_suspect(request) and request in self._waiting:
            self._waiting.remove(request)

    def release_survivor(self) -> ScheduledRequest | None:
        """Return the suspect that ran alone, if it has survived; it is no suspect any more. None otherwise."""
        request = self.running_alone
        if request is None or not _has_outlived(request):
            return None
        self.running_alone = None
        request.deaths = DEATHS_SUSPECT - 1
        return request
