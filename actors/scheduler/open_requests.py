"""The open requests, from submission to end: their states, and the resources that they free.

    ──submit──▶ waiting ──asked, admitted──▶ running ──last token, abort, deadline, stop string──▶ ended
                   ▲                            │
                   └── preempted, memory lost ──┘

`outputs` reports ends to the detokenizer, and `block_updates` reports freed blocks to the block manager.
"""

from __future__ import annotations

from collections.abc import Iterator

from pageant.actors.scheduler.backlog import Backlog, Deadlines, Limits
from pageant.actors.scheduler.counters import SchedulerCounters
from pageant.actors.scheduler.deferral import Deferrals
from pageant.actors.scheduler.outputs import TokenOutputs
from pageant.actors.scheduler.plans import BlockUpdates
from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.running import Running
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.actors.scheduler.speculation import Speculator
from pageant.protocol.arrays import Float32Matrix
from pageant.protocol.drafting import Speculation
from pageant.protocol.lifecycle import PauseMode
from pageant.protocol.serving import EndCause, Finished, FinishReason, Submit, spans_within

OUTPUT_SHARE = 0.05
"""Share of one output in the mean of those that ended lately."""


class OpenRequests:
    """Open requests, in the order in which they came."""

    def __init__(
        self, policy: Policy, limits: Limits, speculation: Speculation | None, vocab_size: int | None
    ) -> None:
        self.limits = limits
        self.counters = SchedulerCounters()
        self.outputs = TokenOutputs()
        self.block_updates = BlockUpdates()
        self.waiting = Backlog(policy, limits)
        self.running = Running()
        self.speculator = None if speculation is None else Speculator(speculation, vocab_size, self.running)
        self.deferrals = Deferrals(self.running)
        # Seconds of the shell's clock, at the last event that brought them.
        self.now = 0.0
        # Requests by frontend and request id. Has the same requests as `_by_serial`.
        self._by_name: dict[tuple[str, str], ScheduledRequest] = {}
        self._by_serial: dict[int, ScheduledRequest] = {}
        # The last serial that was issued.
        self._serial = 0
        self._deadlines = Deadlines()
        # The most tokens of a request: both the limits and the executor's memory hold as many.
        self._longest = limits.max_model_len
        # The mode of the present pause, or None; see `pause`.
        self.paused: PauseMode | None = None
        # The weight version of the executor that computes, or of the last one that did.
        self.weight_version = ""
        # Seconds of the shell's clock at the end of the last request that was no probe; None before the first.
        self.used_at: float | None = None
        # Mean tokens of the outputs that ended lately; 0 before the first.
        self.mean_output = 0.0

    def __len__(self) -> int:
        return len(self._by_serial)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return iter(self._by_serial.values())

    def of(self, frontend: str) -> tuple[str, ...]:
        """Return the names of a frontend's requests."""
        return tuple(name for owner, name in self._by_name if owner == frontend)

    def named(self, frontend: str, request_id: str) -> ScheduledRequest | None:
        """Return the request that a frontend calls by this name, or None."""
        return self._by_name.get((frontend, request_id))

    def find(self, serial: int) -> ScheduledRequest | None:
        """Return the request of a serial, or None."""
        return self._by_serial.get(serial)

    # Coming.

    def submit(self, message: Submit) -> None:
        """Take a request. One that can never be served ends at once, with the reason."""
        key = (message.frontend, message.request_id)
        if key in self._by_name:
            # The request was sent twice, and is being served.
            return
        self._serial += 1
        request = ScheduledRequest.of(message, self._serial, self.limits.end_tokens, self.now)
        if message.deadline is not None:
            self._deadlines.add(request)
        self._bound(request)
        self.counters.submitted += 1
        self.counters.resumed += request.is_resumed
        self._by_name[key] = self._by_serial[request.serial] = request
        self.outputs.open(request)
        overload = None if request.is_resumed else self.waiting.overload(request)
        self.waiting.arrive(request)
        if overload is not None:
            self.counters.overloads += 1
            self.end(request, "error", message=overload, cause="overload")
        elif self.paused == "abort" and request.is_resumed:
            # A resumed request was open when the pause began.
            self.end(request, "abort")
        else:
            self._fit(request)
        if request.num_resumed and request.state is not State.ENDED:
            self.end_if_complete(request)

    def limit(self, longest: int) -> None:
        """Set the most tokens of a request, prompt and output together. Requests that have as many already end."""
        if longest != self._longest:
            self._longest = longest
            for request in list(self):
                self._fit(request)
                if len(request.output) and request.state is not State.ENDED:
                    self.end_if_complete(request)

    def _bound(self, request: ScheduledRequest) -> int:
        """Set a request's maximal length; return how many tokens are left for its output."""
        room = self._longest - len(request.prompt)
        if request.pooling is not None:
            # One token is counted that is never sampled, so that the request is planned up to its prompt's end.
            request.max_total = len(request.prompt) + 1
            return room + 1
        wanted = request.params.max_tokens
        request.max_total = len(request.prompt) + (room if wanted is None else min(wanted, room))
        if request.hands_over:
            first = len(request.prompt) + max(1, request.num_resumed)
            # One that ends with that token ends here.
            request.hands_over = first < request.max_total
            request.max_total = min(first, request.max_total)
        return room

    def _fit(self, request: ScheduledRequest) -> None:
        """End a request if there is no room for its output."""
        room = self._bound(request)
        if not len(request.prompt):
            self.end(request, "error", message="the prompt has no tokens", cause="request")
        elif room < 1:
            bound = "max_model_len" if self._longest == self.limits.max_model_len else "the executor's memory"
            self.end(
                request,
                "error",
                message=f"the prompt has {len(request.prompt)} tokens; with {bound} of {self._longest} "
                + (
                    f"at most {self._longest - 1} leave room for an answer"
                    if request.pooling is None
                    else "no more are taken"
                ),
                cause="request",
            )

    # Pauses.

    def pause(self, mode: PauseMode) -> None:
        """Begin a pause; `PauseMode` has the fate of the open requests."""
        self.paused, self.waiting.holds_new = mode, mode == "wait"
        if mode == "abort":
            for request in list(self):
                self.counters.count_abort(request, prefilling=self.running.is_prefilling(request))
                self.end(request, "abort")

    def resume(self) -> None:
        """End a pause."""
        self.paused = None
        self.waiting.release_held()

    @property
    def plans_nothing(self) -> bool:
        """Tell whether nothing is to be computed for any request."""
        return self.paused is not None and self.paused != "wait"

    def release_running(self) -> None:
        """Free the memory of running requests. They wait at the head of the queue to be recomputed."""
        self.counters.recomputed += len(self.running)
        for request in list(self.running):
            self._requeue(request)

    # Back to the queue.

    def preempt(self, request: ScheduledRequest) -> None:
        """Preempt a running request."""
        self.counters.preemptions += 1
        request.num_preemptions += 1
        self._requeue(request)

    def release_survivor(self) -> None:
        """Let a suspect that ran alone and survived run beside others; unless another suspect is to run alone
        next.
        """
        survivor = self.waiting.quarantine.release_survivor()
        if survivor is not None:
            self.counters.suspects_tried += 1
            if self.waiting.quarantine.active:
                self._requeue(survivor)

    def lose_memory(self) -> None:
        """Queue all running requests again: their KV is lost. Recomputation samples the same tokens."""
        self.counters.recomputed += len(self.running)
        for request in list(self.running):
            self._requeue(request)
        self.block_updates.clear()

    def _requeue(self, request: ScheduledRequest) -> None:
        """Queue a running request again, at its place in the policy's order. It resumes by recomputation."""
        self.running.remove(request)
        self._release(request)
        self.waiting.add(request)

    # Ends.

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        for request in self._deadlines.passed(self.now, self._by_serial):
            self.counters.deadlines_missed += 1
            self.end(request, "abort", message="its deadline has passed", cause="deadline")

    @property
    def next_deadline(self) -> float | None:
        """Return the time at which `expire` has something to do, or None."""
        return self._deadlines.next(self._by_serial)

    def end_if_complete(self, request: ScheduledRequest) -> None:
        """End a request if its last token completes it."""
        ended = request.end_reason()
        if ended is not None:
            reason, stop_token = ended
            if reason != "stop" and request.hands_over:
                self.counters.handed_over += 1
                self.end(request, "abort", cause="moved")
                return
            self.end(request, "stop" if reason == "stop" else "length", stop_reason=stop_token)

    def end(
        self,
        request: ScheduledRequest,
        reason: FinishReason,
        stop_reason: int | None = None,
        message: str | None = None,
        cause: EndCause | None = None,
        pooled: Float32Matrix | None = None,
    ) -> None:
        """End a request, with its terminal message to the detokenizer.

        pooled: float32 [vectors, width], its result, if it is pooled.
        """
        admitted, first = request.admitted_at, request.first_token_at
        finished = Finished(
            reason=reason,
            stop_reason=stop_reason,
            message=message,
            cause=cause,
            num_output_tokens=len(request.output),
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
            queue_seconds=(self.now if admitted is None else admitted) - request.arrived_at,
            prefill_seconds=0.0 if admitted is None else (self.now if first is None else first) - admitted,
            decode_seconds=0.0 if first is None else self.now - first,
            weight_versions=spans_within(request.weight_versions, len(request.output)),
            pooled=pooled,
        )
        self.outputs.finish(request, finished)
        self._forget(request)

    def stopped(self, request: ScheduledRequest) -> None:
        """Forget a request that the detokenizer ended; its frontend knows."""
        self.counters.stops_by_string += 1
        self.outputs.drop(request)
        self._forget(request)

    def _forget(self, request: ScheduledRequest) -> None:
        """Remove a request from every list. Its row and blocks are freed as soon as no step computes it."""
        del self._by_name[(request.frontend, request.request_id)]
        del self._by_serial[request.serial]
        self.counters.ended += 1
        if not request.is_probe:
            self.used_at = self.now
            if length := len(request.output):
                self.mean_output += (OUTPUT_SHARE if self.mean_output else 1.0) * (length - self.mean_output)
        if self.speculator is not None:
            self.speculator.forget(request)
        state, request.state = request.state, State.ENDED
        self.waiting.end(request, waited=state is State.WAITING)
        if state is State.RUNNING:
            self.running.remove(request)
            if not self.running.is_named(request):
                self._release(request)

    def leave(self, chunks: ScheduledRows) -> None:
        """Free the rows and blocks of ended requests that a step has named and no other does."""
        for request in self.running.leave(chunks):
            self._release(request)

    def _release(self, request: ScheduledRequest) -> None:
        """Free a request's row and blocks, with the next messages."""
        self.block_updates.freed.append(request.serial)
        self.deferrals.forget(request.held_row)
        self.running.release(request)

    def check_integrity(self, under_way: list[ScheduledRows]) -> None:
        """Assert the invariants, given the scheduled rows of all steps under way."""
        assert len(self._by_name) == len(self._by_serial), "a request is known by one name only"
        running = sum(request.state is State.RUNNING for request in self)
        assert running == len(self.running), f"{running} requests run, {len(self.running)} are listed"
        waiting, queued = (
            sum(request.state is State.WAITING for request in self),
            len(self.waiting) + self.waiting.num_held,
        )
        assert waiting == queued, f"{waiting} requests wait, the queue has {queued}"
        tokens = sum(request.num_tokens for request in self if request.state is State.WAITING)
        counted = self.waiting.num_tokens
        assert tokens == counted, f"{tokens} tokens wait, {counted} are counted"
        self.running.check_integrity(under_way)
        for request in self:
            if request.state is not State.RUNNING:
                assert request.row is None, f"request {request.serial} holds a row while it waits"
