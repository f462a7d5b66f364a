"""The scheduler's core: events in, messages out; no I/O, no clock.

It thinks in tokens: each request has known and computed tokens, and a step gives each scheduled request
some of its uncomputed ones, within a budget. Prefill, chunked prefill, decode and recomputation after a
preemption are all this one case. A step goes through three phases:

    IDLE ──Assign──▶ ASSIGNING ──Assigned, StepPlan──▶ COMPUTING ──StepResult──▶ IDLE

What the block manager grants is computed in that very step, also when the request has been aborted
meanwhile: its blocks are named by then, and others may use them.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from pageant.actors.scheduler.outputs import TokenOutputs
from pageant.actors.scheduler.plans import build_plan
from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.queue import WaitingQueue
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.protocol.allocation import Admission, Assign, Assigned
from pageant.protocol.arrays import int32, int64
from pageant.protocol.message import Message
from pageant.protocol.outputs import Stopped
from pageant.protocol.serving import Abort, Finished, FinishReason, Submit
from pageant.protocol.stepping import ExecutorReady, StepResult

EXECUTORS, BLOCKS, DETOKENIZER = "executor/*", "blocks", "detokenizer"

OVERASK = 8  # admissions asked for per step, in tokens, over the budget

Outbox = list[tuple[str, Message]]


class Phase(enum.Enum):
    """Where the current step is."""

    IDLE = "idle"
    ASSIGNING = "assigning"
    COMPUTING = "computing"


@dataclass(frozen=True)
class Limits:
    """What one step and one batch may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    end_tokens: frozenset[int]


@dataclass
class SchedulerCounters:
    """What happened so far; for metrics and for tests that ask whether it did."""

    steps: int = 0
    submitted: int = 0
    ended: int = 0
    chunk_splits: int = 0
    preemptions: int = 0
    aborts_waiting: int = 0
    aborts_running_prefill: int = 0
    aborts_running_decode: int = 0
    aborts_preempted: int = 0
    stops_by_string: int = 0
    tokens_cached: int = 0
    growth_refused: int = 0
    admissions_refused: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of a request, from `start`, in the step at hand."""

    request: ScheduledRequest
    start: int
    length: int

    @property
    def draws(self) -> bool:
        """Whether a token is drawn: the chunk reaches the end of what is known."""
        return self.start + self.length == self.request.num_tokens


class SchedulerCore:
    """All requests of this scheduler, and the step in progress."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self.policy, self.limits = policy, limits
        self.counters = SchedulerCounters()
        self.outputs = TokenOutputs()
        self.phase = Phase.IDLE
        self._waiting = WaitingQueue(policy)
        self._running: list[ScheduledRequest] = []  # in the policy's order
        self._requests: dict[tuple[str, str], ScheduledRequest] = {}
        self._by_serial: dict[int, ScheduledRequest] = {}
        self._serial = 0
        self._step = 0
        self._plan_number = 0
        self._epoch: int | None = None  # the executor's, while it is up
        self._pool_epoch: int | None = None  # the block manager's, while it is up
        self._free_rows: list[int] = []
        self._freed_rows: list[int] = []
        self._freed_serials: list[int] = []
        self._asked: list[Chunk] = []  # what is with the block manager: growth first, then admissions
        self._num_growing = 0
        self._admitting: list[ScheduledRequest] = []
        self._computing: list[Chunk] = []
        self._memory_short = False  # growth was refused: nobody is admitted before that has passed
        self._outbox: Outbox = []

    # Events.

    def submit(self, message: Submit) -> None:
        """A request comes. One that can never be served ends at once, with the reason."""
        self._serial += 1
        params = message.params
        room = self.limits.max_model_len - len(message.prompt_token_ids)
        wanted = room if params.max_tokens is None else min(params.max_tokens, room)
        request = ScheduledRequest(
            request_id=message.request_id,
            frontend=message.frontend,
            serial=self._serial,
            arrival=self._serial,
            prompt=message.prompt_token_ids,
            params=params,
            max_total=len(message.prompt_token_ids) + wanted,
            end_tokens=frozenset() if params.ignore_eos else self.limits.end_tokens,
        )
        key = (message.frontend, message.request_id)
        if key in self._requests:
            return  # sent twice; the first is being served
        self.counters.submitted += 1
        self._requests[key] = request
        self._by_serial[request.serial] = request
        self.outputs.open(request)
        if not len(request.prompt):
            self._end(request, "error", message="the prompt has no tokens")
        elif room < 1:
            self._end(
                request,
                "error",
                message=f"the prompt has {len(request.prompt)} tokens; with max_model_len "
                f"{self.limits.max_model_len} at most {self.limits.max_model_len - 1} leave room for an answer",
            )
        else:
            self._waiting.push(request)
        self._advance()

    def abort(self, message: Abort) -> None:
        """Ends requests at once, wherever they are. Unknown ones have ended already."""
        for request_id in message.request_ids:
            request = self._requests.get((message.frontend, request_id))
            if request is not None:
                self._count_abort(request)
                self._end(request, "abort")
        self._advance()

    def frontend_gone(self, frontend: str) -> None:
        """Its requests have nobody to be for."""
        ids = tuple(request_id for owner, request_id in self._requests if owner == frontend)
        self.abort(Abort(frontend=frontend, request_ids=ids))

    def stopped(self, message: Stopped) -> None:
        """The detokenizer ended requests at a stop string."""
        for serial in message.serials.tolist():
            request = self._by_serial.get(serial)
            if request is not None:
                self.counters.stops_by_string += 1
                self._forget(request)
        self._advance()

    def executor_ready(self, event: ExecutorReady) -> None:
        """An executor of a new epoch: its memory and its batch are empty."""
        if self._epoch is not None and event.epoch <= self._epoch:
            return
        self.executor_gone("the executor was restarted")
        self._epoch = event.epoch
        self._plan_number = 0
        self._free_rows = list(range(min(event.max_num_seqs, self.limits.max_num_seqs)))[::-1]
        self._freed_rows = []
        self._advance()

    def executor_gone(self, reason: str) -> None:
        """Whatever was in the executor's memory is lost; the requests that were there end."""
        self._epoch = None
        self._lose_running(f"the executor died while this request ran: {reason}")

    def pool_ready(self, epoch: int, renewed: bool) -> None:
        """The block manager has a pool for that epoch. `renewed`: it is another manager than before."""
        if renewed and self._pool_epoch is not None:
            self.pool_gone("the block manager was restarted")
        self._pool_epoch = epoch
        self._advance()

    def pool_gone(self, reason: str) -> None:
        """Nobody knows any more which block is whose; the requests that hold any end."""
        self._pool_epoch = None
        self._lose_running(f"the block manager died while this request ran: {reason}")

    def detokenizer_gone(self) -> None:
        """The texts of all open requests are lost; they end, as the next detokenizer is told."""
        self.outputs.stream.restart()
        self.outputs.clear()
        for request in list(self._by_serial.values()):
            self.outputs.open(request)
            self._end(request, "error", message="the detokenizer died while this request was open")

    def assigned(self, message: Assigned) -> None:
        """What the block manager granted: the plan of this step."""
        if self.phase is not Phase.ASSIGNING or message.step != self._step:
            return  # of a step that was given up meanwhile
        chunks, new = self._take_grants(message)
        self._preempt_if_short(message)
        self._asked, self._admitting = [], []
        if not chunks:
            self.phase = Phase.IDLE
            self._advance()
            return
        self._plan_number += 1
        plan = build_plan(self._plan_number, message, self._take_freed_rows(), chunks, new)
        self._computing = chunks
        self.phase = Phase.COMPUTING
        self.counters.steps += 1
        self._outbox.append((EXECUTORS, plan))

    def stepped(self, message: StepResult) -> None:
        """The tokens that a step drew."""
        if self.phase is not Phase.COMPUTING or (message.number, message.epoch) != (
            self._plan_number,
            self._epoch,
        ):
            return
        drawn = dict(zip(message.rows.tolist(), message.token_ids.tolist(), strict=True))
        computed, self._computing = self._computing, []
        self.phase = Phase.IDLE
        for chunk in computed:
            request = chunk.request
            if request.state is State.RUNNING:
                draws = chunk.draws
                request.num_computed += chunk.length
                if draws:
                    self._take_token(request, drawn[request.row])
            elif request.row >= 0:
                self._release(request)  # it was ended while this step computed it
        self._advance()

    def acknowledged(self, up_to: int) -> None:
        """The detokenizer has taken in our batches so far."""
        self.outputs.stream.acknowledge(up_to)
        self._advance()

    def take_outbox(self) -> Outbox:
        """The messages that these events lead to, in order."""
        if self.outputs and self.outputs.stream.open:
            self._outbox.append((DETOKENIZER, self.outputs.take()))
        outbox, self._outbox = self._outbox, []
        return outbox

    # One step.

    def _advance(self) -> None:
        """Begins a step if there is something to compute, and nothing is in its way."""
        ready = self._epoch is not None and self._epoch == self._pool_epoch
        if self.phase is not Phase.IDLE or not ready or not self.outputs.stream.open:
            return
        if not (self._running or len(self._waiting) or self._freed_serials):
            return
        growing = self._choose_running()
        budget = self.limits.max_num_batched_tokens - sum(chunk.length for chunk in growing)
        self._admitting = [] if self._memory_short else self._choose_waiting(budget)
        self._memory_short = False
        self._asked, self._num_growing = growing, len(growing)
        if not (growing or self._admitting or self._freed_serials):
            return
        self._step += 1
        self.phase = Phase.ASSIGNING
        self._outbox.append((BLOCKS, self._build_assign(growing, budget)))

    def _choose_running(self) -> list[Chunk]:
        """Chunks of the running requests: one token for each that decodes, then prefills in order."""
        budget = self.limits.max_num_batched_tokens
        decoding = [request for request in self._running if request.num_uncomputed == 1][:budget]
        chunks = [Chunk(request, request.num_computed, 1) for request in decoding]
        budget -= len(chunks)
        for request in self._running:
            if budget > 0 and request.num_uncomputed > 1:
                length = min(request.num_uncomputed, budget)
                chunks.append(Chunk(request, request.num_computed, length))
                budget -= length
        # The order of grants is the policy's, so that memory goes to whom it favours.
        order = {request.serial: index for index, request in enumerate(self._running)}
        chunks.sort(key=lambda chunk: order[chunk.request.serial])
        return chunks

    def _choose_waiting(self, budget: int) -> list[ScheduledRequest]:
        """The waiting requests that are put to the block manager.

        How much each needs is only known with its cached prefix, so more are asked for than the budget
        holds without one; the manager admits as many as fit.
        """
        chosen: list[ScheduledRequest] = []
        tokens = budget * OVERASK
        for request in self._waiting.first(min(len(self._free_rows), max(0, budget))):
            request.state = State.ASKED
            chosen.append(request)
            tokens -= request.num_tokens
            if tokens <= 0:
                break
        return chosen

    def _build_assign(self, growing: list[Chunk], budget: int) -> Assign:
        counts: list[int] = []
        tokens: list[int] = []
        for chunk in growing:
            request = chunk.request
            fresh = request.output[request.num_reported :]
            request.num_reported = len(request.output)
            counts.append(len(fresh))
            tokens += fresh
        for request in self._admitting:
            request.num_reported = len(request.output)
        freed, self._freed_serials = self._freed_serials, []
        assert self._epoch is not None
        return Assign(
            step=self._step,
            epoch=self._epoch,
            freed=int64(freed),
            grow_serials=int64([chunk.request.serial for chunk in growing]),
            grow_lengths=int32([chunk.start + chunk.length for chunk in growing]),
            token_counts=int32(counts),
            token_ids=int32(tokens),
            admissions=tuple(
                Admission(serial=request.serial, token_ids=request.token_ids()) for request in self._admitting
            ),
            admission_tokens=max(0, budget),
        )

    def _take_grants(self, message: Assigned) -> tuple[list[Chunk], list[ScheduledRequest]]:
        """The chunks of this step, and those of their requests that are new in the batch."""
        chunks = self._asked[: message.num_grown]
        new = []
        for request, grant in zip(self._admitting, message.admitted, strict=False):
            assert grant.serial == request.serial, "admissions are granted in order"
            self._admit(request, grant.num_cached_tokens)
            chunks.append(Chunk(request, grant.num_cached_tokens, grant.num_tokens))
            new.append(request)
        for request in self._admitting[len(message.admitted) :]:
            self._put_back(request)
            self.counters.admissions_refused += request.state is State.WAITING
        self.counters.chunk_splits += sum(not chunk.draws for chunk in chunks)
        return chunks, new

    def _admit(self, request: ScheduledRequest, cached: int) -> None:
        """A request gets a row; an aborted one too, for the one step that it was granted."""
        request.row = self._free_rows.pop()
        request.num_computed = cached
        self.counters.tokens_cached += cached
        if request.state is State.ASKED:
            request.state = State.RUNNING
            if not request.num_preemptions:
                request.num_cached = cached
            bisect.insort(self._running, request, key=self._waiting.key)
            self.outputs.admitted(request)

    def _put_back(self, request: ScheduledRequest) -> None:
        """An admission that was not granted; an aborted request is gone by now."""
        if request.state is State.ASKED:
            request.state = State.WAITING
            self._waiting.push(request)

    def _preempt_if_short(self, message: Assigned) -> None:
        """Growth was refused: the policy's victim gives way."""
        refused = self._num_growing - message.num_grown
        if refused <= 0:
            return
        self.counters.growth_refused += refused
        self._memory_short = True
        # Only one that is not in this step's plan can give way; growth is refused from the end of the
        # policy's order, so the policy's victim is normally among them.
        candidates = []
        for chunk in self._asked[message.num_grown :]:
            if chunk.request.state is State.RUNNING:
                candidates.append(chunk.request)
            else:
                self._release(chunk.request)  # ended meanwhile, and not computed
        if candidates:
            self._preempt(self.policy.victim(candidates))

    def _preempt(self, request: ScheduledRequest) -> None:
        """Back to the queue: its blocks are freed, and it resumes by computing its tokens again."""
        self.counters.preemptions += 1
        request.num_preemptions += 1
        self._release(request)
        request.state = State.WAITING
        request.num_computed = 0
        request.num_reported = 0
        self._running.remove(request)
        self._waiting.push(request)

    def _take_token(self, request: ScheduledRequest, token: int) -> None:
        request.output.append(token)
        self.outputs.token(request, token)
        ended = request.end_reason()
        if ended is not None:
            reason, stop_token = ended
            self._end(request, "stop" if reason == "stop" else "length", stop_reason=stop_token)

    # Ends.

    def _end(
        self,
        request: ScheduledRequest,
        reason: FinishReason,
        stop_reason: int | None = None,
        message: str | None = None,
    ) -> None:
        """Ends a request, with its terminal message to the detokenizer."""
        finished = Finished(
            reason=reason,
            stop_reason=stop_reason,
            message=message,
            num_output_tokens=len(request.output),
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
        )
        self.outputs.finish(request, finished)
        self._forget(request)

    def _forget(self, request: ScheduledRequest) -> None:
        """Takes a request out of every list. What it holds is freed as soon as nothing computes it."""
        del self._requests[(request.frontend, request.request_id)]
        del self._by_serial[request.serial]
        self.counters.ended += 1
        state, request.state = request.state, State.ENDED
        if state is State.WAITING:
            self._waiting.discard()
        elif state is State.RUNNING:
            self._running.remove(request)
            if not self._is_in_step(request):
                self._release(request)

    def _is_in_step(self, request: ScheduledRequest) -> bool:
        """Whether the step in progress names this request's row or blocks."""
        if self.phase is Phase.ASSIGNING:
            return any(chunk.request is request for chunk in self._asked)
        return any(chunk.request is request for chunk in self._computing)

    def _release(self, request: ScheduledRequest) -> None:
        """Gives back a request's row and blocks, with the next messages."""
        self._freed_serials.append(request.serial)
        self._freed_rows.append(request.row)
        self._free_rows.append(request.row)
        request.row = -1

    def _take_freed_rows(self) -> list[int]:
        freed, self._freed_rows = self._freed_rows, []
        return freed

    def _lose_running(self, reason: str) -> None:
        """Ends every request that holds memory; the waiting ones can still be served."""
        self.phase = Phase.IDLE
        for request in self._admitting:
            self._put_back(request)
        for chunk in (*self._asked, *self._computing):
            if chunk.request.state is State.ENDED and chunk.request.row >= 0:
                self._release(chunk.request)
        self._asked, self._admitting, self._computing = [], [], []
        for request in list(self._running):
            self._end(request, "error", message=reason)
        self._freed_serials = []
        self._memory_short = False

    def _count_abort(self, request: ScheduledRequest) -> None:
        counters = self.counters
        if request.state is State.RUNNING:
            if request.num_uncomputed > 1:
                counters.aborts_running_prefill += 1
            else:
                counters.aborts_running_decode += 1
        elif request.num_preemptions:
            counters.aborts_preempted += 1
        else:
            counters.aborts_waiting += 1

    # Looking in.

    @property
    def num_waiting(self) -> int:
        """Requests that hold no memory."""
        return len(self._waiting) + len(self._admitting)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._running)

    def requests(self) -> Iterable[ScheduledRequest]:
        """Every open request."""
        return self._by_serial.values()

    def check_integrity(self) -> None:
        """Asserts what must always hold."""
        assert len(self._requests) == len(self._by_serial), "a request is known by one name only"
        running = sum(request.state is State.RUNNING for request in self._by_serial.values())
        assert running == len(self._running), f"{running} requests run, {len(self._running)} are listed"
        waiting = sum(request.state is State.WAITING for request in self._by_serial.values())
        assert waiting == len(self._waiting), f"{waiting} requests wait, the queue has {len(self._waiting)}"
        rows = [request.row for request in self._running] + self._free_rows
        assert len(rows) == len(set(rows)), "a row belongs to two requests"
        if self.phase is not Phase.COMPUTING:
            assert all(
                request.row < 0 for request in self._by_serial.values() if request.state is State.WAITING
            )
