"""The requests that wait: who is next, how many may be there, and what their tenants pay."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pageant.actors.scheduler.policies import Policy, Shares
from pageant.actors.scheduler.queue import WaitingQueue
from pageant.actors.scheduler.recovery import Quarantine, is_suspect
from pageant.actors.scheduler.request import ScheduledRequest, State


@dataclass(frozen=True)
class Limits:
    """What one step, one batch and the queue may hold; see `Scheduler.Options`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    end_tokens: frozenset[int]
    async_scheduling: bool = True
    short_step_seconds: float = 0.0
    max_steps_per_plan: int = 1
    max_waiting_requests: int | None = None
    max_waiting_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    max_long_partial_prefills: int = 1


class Backlog:
    """The queue, with its limits. A tenant pays for a prompt when it is taken out, once, whatever preemptions
    and deaths cost."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._policy, self._limits = policy, limits
        self._shares = policy if isinstance(policy, Shares) else None
        self._queue = WaitingQueue(self._shares)
        self._held: dict[int, ScheduledRequest] = {}  # by serial: those that are not to be taken yet
        self.quarantine = Quarantine()
        self.num_tokens = 0  # of all that wait
        self.holds_new = False
        """Whether new requests are held back, until `release_held`. Those of an earlier scheduler never are."""

    def __len__(self) -> int:
        """Requests that could be taken, if there were room."""
        return len(self._queue) + len(self.quarantine)

    @property
    def num_held(self) -> int:
        """Requests that are held back."""
        return len(self._held)

    def overload(self, request: ScheduledRequest) -> str | None:
        """Why there is no room for a new request, or None."""
        requests, tokens = self._limits.max_waiting_requests, self._limits.max_waiting_tokens
        waiting = len(self) + len(self._held)
        if requests is not None and waiting >= requests:
            return f"{waiting} requests are waiting already; max_waiting_requests is {requests}"
        if tokens is not None and self.num_tokens + request.num_tokens > tokens:
            return (
                f"{self.num_tokens} tokens are waiting already, and the prompt has {request.num_tokens}; "
                f"max_waiting_tokens is {tokens}"
            )
        return None

    def arrive(self, request: ScheduledRequest) -> None:
        """A new request, whose length is known: it gets its place."""
        threshold = self._limits.long_prefill_token_threshold
        request.is_long = threshold is not None and len(request.prompt) > threshold
        request.key = (*self._policy.order(request), request.serial)
        if self._shares is not None:
            self._shares.arrived(request)
            if request.num_resumed:
                self._shares.served(request.tenant, len(request.prompt), request.num_resumed)
        if self.holds_new and not request.is_resumed:
            request.state = State.WAITING
            self._held[request.serial] = request
            self.num_tokens += request.num_tokens
        else:
            self.add(request)

    def release_held(self) -> None:
        """Hold nobody back any more. Those that were held stand in the queue as if they had always been there."""
        self.holds_new = False
        held, self._held = self._held, {}
        for request in held.values():
            self._queue.push(request)

    def add(self, request: ScheduledRequest) -> None:
        """A request waits, for the first time or again."""
        request.state = State.WAITING
        if is_suspect(request):
            self.quarantine.add(request)
        else:
            self._queue.push(request)
        self.num_tokens += request.num_tokens

    def take(self, count: int, num_long: int) -> Iterator[ScheduledRequest]:
        """The next requests, at most `count`; of long ones no more than the `num_long` that are being computed
        leave room for."""
        for request in self._queue.first(count, self._long_max(num_long)):
            self._taken(request)
            yield request

    def take_suspect(self) -> list[ScheduledRequest]:
        """The one that is to be tried next, if there is one. Nobody runs."""
        request = self.quarantine.take()
        if request is None:
            return []
        self._taken(request)
        return [request]

    def _taken(self, request: ScheduledRequest) -> None:
        request.state = State.ASKED
        self.num_tokens -= request.num_tokens
        self._charge(request, request.num_tokens)

    def put_back(self, request: ScheduledRequest) -> None:
        """One that was taken could not be admitted."""
        self._charge(request, -request.num_tokens)
        self.add(request)

    def give_up(self, request: ScheduledRequest) -> None:
        """One that was taken has ended before it could be admitted."""
        self._charge(request, -request.num_tokens)

    def drew(self, requests: Iterable[ScheduledRequest]) -> None:
        """A token was drawn for each of these requests."""
        if self._shares is not None:
            for tenant, count in Counter([request.tenant for request in requests]).items():
                self._shares.served(tenant, 0, count)

    def end(self, request: ScheduledRequest, *, waited: bool) -> None:
        """A request has ended; its state says so by now."""
        if self._shares is not None:
            self._shares.left(request)
        self.quarantine.end(request)
        if waited:
            if self._held.pop(request.serial, None) is None and not is_suspect(request):
                self._queue.discard(request)
            self.num_tokens -= request.num_tokens

    def _long_max(self, num_long: int) -> int | None:
        """How many more long prompts may be computed beside those that are."""
        if self._limits.long_prefill_token_threshold is None:
            return None
        return max(0, self._limits.max_long_partial_prefills - num_long)

    def _charge(self, request: ScheduledRequest, num_tokens: int) -> None:
        if self._shares is not None and not request.was_admitted:
            self._shares.served(request.tenant, num_tokens, 0)


class Deadlines:
    """When which request is to end at the latest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # with serials

    def add(self, request: ScheduledRequest) -> None:
        """A request has a deadline."""
        heapq.heappush(self._heap, (request.deadline, request.serial))

    def next(self, requests: dict[int, ScheduledRequest]) -> float | None:
        """The earliest of the requests, by serial, that are still open."""
        while self._heap and self._heap[0][1] not in requests:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float, requests: dict[int, ScheduledRequest]) -> Iterator[ScheduledRequest]:
        """The open requests whose deadlines are over, each once."""
        while self._heap and self._heap[0][0] <= now:
            _, serial = heapq.heappop(self._heap)
            if serial in requests:
                yield requests[serial]
