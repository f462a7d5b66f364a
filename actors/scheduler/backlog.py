"""The waiting requests: their order, the bounds of the queue, and what tenants are charged."""

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
    """Bounds of a step, of the batch and of the queue; see `Scheduler.Options`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    end_tokens: frozenset[int]
    async_scheduling: bool = True
    short_step_seconds: float = 0.0
    max_steps_per_plan: int = 1
    continues_plans: bool = True
    """See `RunAhead.rules`."""
    max_waiting_requests: int | None = None
    max_waiting_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    max_long_partial_prefills: int = 1


class Backlog:
    """The queue, with its limits.

    A tenant is charged for a prompt once, when the request is first taken out, whatever preemptions and deaths
    cost.
    """

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self._policy, self._limits = policy, limits
        self._shares = policy if isinstance(policy, Shares) else None
        self._queue = WaitingQueue(self._shares)
        # Requests that are held back, by serial.
        self._held: dict[int, ScheduledRequest] = {}
        self.quarantine = Quarantine()
        # Tokens of all waiting requests, held ones included.
        self.num_tokens = 0
        # New requests are held back until `release_held`. Those of an earlier scheduler never are.
        self.holds_new = False
        """Whether new requests are held back, until `release_held`. Those of an earlier scheduler never are."""

    def __len__(self) -> int:
        """Return the number of requests that could be taken if there were room."""
        return len(self._queue) + len(self.quarantine)

    @property
    def num_held(self) -> int:
        """Return the number of requests that are held back."""
        return len(self._held)

    def overload(self, request: ScheduledRequest) -> str | None:
        """Return why there is no room for a new request, or None."""
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
        """Queue a new request, whose length is known."""
        threshold = self._limits.long_prefill_token_threshold
        has_whole = request.prompt_embeds is not None and request.prompt_embeds.whole
        request.is_long = threshold is not None and len(request.prompt) > threshold and not has_whole
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
        """Hold no request back any more. Held requests enter the queue in the order of their keys."""
        self.holds_new = False
        held, self._held = self._held, {}
        for request in held.values():
            self._queue.push(request)

    def add(self, request: ScheduledRequest) -> None:
        """Queue a request, for the first time or again."""
        request.state = State.WAITING
        if is_suspect(request):
            self.quarantine.add(request)
        else:
            self._queue.push(request)
        self.num_tokens += request.num_tokens

    def take(self, count: int, num_long: int) -> Iterator[ScheduledRequest]:
        """Take out the next requests, at most `count`.

        Args:
            num_long: long prompts that are being computed; they bound how many more may be taken.
        """
        for request in self._queue.first(count, self._long_max(num_long)):
            self._taken(request)
            yield request

    def take_suspect(self) -> list[ScheduledRequest]:
        """Take out the suspect that runs alone next, if there is one. No other request may run."""
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
        """Queue again a request that was taken and not admitted."""
        self._charge(request, -request.num_tokens)
        self.add(request)

    def refund(self, request: ScheduledRequest) -> None:
        """Refund a request that was taken and ended before it could be admitted."""
        self._charge(request, -request.num_tokens)

    def charge_tokens(self, requests: Iterable[ScheduledRequest], each: int = 1) -> None:
        """Charge the tenants for `each` sampled tokens of each request."""
        if self._shares is not None:
            for tenant, count in Counter([request.tenant for request in requests]).items():
                self._shares.served(tenant, 0, count * each)

    def end(self, request: ScheduledRequest, *, waited: bool) -> None:
        """Forget a request that has ended; its state says so by now."""
        if self._shares is not None:
            self._shares.left(request)
        self.quarantine.end(request)
        if waited:
            if self._held.pop(request.serial, None) is None and not is_suspect(request):
                self._queue.discard(request)
            self.num_tokens -= request.num_tokens

    def _long_max(self, num_long: int) -> int | None:
        """Return how many more long prompts may be computed; None is any number."""
        if self._limits.long_prefill_token_threshold is None:
            return None
        return max(0, self._limits.max_long_partial_prefills - num_long)

    def _charge(self, request: ScheduledRequest, num_tokens: int) -> None:
        if self._shares is not None and not request.was_admitted:
            self._shares.served(request.tenant, num_tokens, 0)


class Deadlines:
    """Deadlines of requests, in seconds of the scheduler's clock."""

    def __init__(self) -> None:
        # A heap of deadlines with serials; ended requests are dropped when they reach the top.
        self._heap: list[tuple[float, int]] = []

    def add(self, request: ScheduledRequest) -> None:
        """Add a request with a deadline."""
        heapq.heappush(self._heap, (request.deadline, request.serial))

    def next(self, requests: dict[int, ScheduledRequest]) -> float | None:
        """Return the earliest deadline of the open requests, which are given by serial."""
        while self._heap and self._heap[0][1] not in requests:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float, requests: dict[int, ScheduledRequest]) -> Iterator[ScheduledRequest]:
        """Yield the open requests whose deadlines have passed at `now`, each once."""
        while self._heap and self._heap[0][0] <= now:
            _, serial = heapq.heappop(self._heap)
            if serial in requests:
                yield requests[serial]
