"""The scheduler's core: events in, messages out; no I/O, no clock.

It thinks in tokens: each request has known and computed tokens, and a step gives each scheduled request
some of its uncomputed ones, within a budget. Prefill, chunked prefill, decode and recomputation after a
preemption are all this one case. A step is an exchange with the block manager, and then a plan that the
executor computes:

    ──Assign──▶ exchange ──Assigned, StepPlan──▶ computing ──StepResult──▶

There is one exchange at a time, and while a step is computed the next is planned (`async_scheduling`): a
request that decodes will have a token, and nothing of the plan depends on which. A request that turns out
to have ended costs one wasted row. Without `async_scheduling`, each step waits for the last one's tokens.

What the block manager grants is computed in that very step, also when the request has been aborted
meanwhile: its blocks are named by then, and others may use them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import reduce
from operator import add

import numpy as np

from pageant.actors.scheduler.backlog import Backlog, Deadlines, Limits
from pageant.actors.scheduler.counters import SchedulerCounters
from pageant.actors.scheduler.deferral import Deferrals
from pageant.actors.scheduler.outputs import TokenOutputs
from pageant.actors.scheduler.plans import Computing, Drawn, Exchange, admissions, build_assign, build_plan
from pageant.actors.scheduler.policies import Policy
from pageant.actors.scheduler.recovery import count_death
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.running import Chunks, Running
from pageant.actors.scheduler.speculation import NOTHING, Guess, Speculator
from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import BoolVector, Int32Vector, int32
from pageant.protocol.drafting import Proposed, Speculation
from pageant.protocol.logprobs import Piece, split
from pageant.protocol.message import Message
from pageant.protocol.outputs import Stopped
from pageant.protocol.serving import Abort, EndCause, Finished, FinishReason, Submit
from pageant.protocol.stepping import ExecutorReady, LateTokens, StepResult
from pageant.protocol.verification import NO_DRAFTS, Drafts

EXECUTORS, BLOCKS, DETOKENIZER, DRAFTER = "executor/*", "blocks", "detokenizer", "drafter"

OVERASK = 8  # admissions asked for per step, in tokens, over the budget

Outbox = list[tuple[str, Message]]


class SchedulerCore:
    """All requests of this scheduler, and the steps in progress."""

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        speculation: Speculation | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.policy, self.limits = policy, limits
        self.counters = SchedulerCounters()
        self.outputs = TokenOutputs()
        self._waiting = Backlog(policy, limits)
        self._chunk_max = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._deadlines = Deadlines()
        self._running = Running()
        self.speculator = None if speculation is None else Speculator(speculation, vocab_size, self._running)
        self._waiting.quarantine.trial_tokens += 0 if speculation is None else speculation.tokens
        self._deferrals = Deferrals(self._running)
        self._requests: dict[tuple[str, str], ScheduledRequest] = {}
        self._by_serial: dict[int, ScheduledRequest] = {}
        self._serial = 0
        self._now = 0.0  # seconds of the shell's clock, at the last event that brings them
        self._step = 0
        self._plan_number = 0
        self._epoch: int | None = None  # the executor's, while it is up
        self._epochs_gone = 0  # executors up to this epoch are dead
        self._pool_epoch: int | None = None  # the block manager's, while it is up
        self._manager = 0  # its incarnation
        self._freed: list[int] = []  # sequences that are given up; the block manager is to be told
        self._drawn: list[Drawn] = []  # tokens that it is to be told of before
        self._exchange: Exchange | None = None
        self._computing: deque[Computing] = deque()  # the first is the one that is computed now
        self._computed_step = 0
        self._refused = False  # all that was asked for; nothing changes before a step has been computed
        self._memory_short = False  # growth was refused: nobody is admitted before that has passed
        self._pool_full = False  # an admission was refused for want of blocks
        self._longest = limits.max_model_len  # tokens of a request: what limits and executor both hold
        self._outbox: Outbox = []

    # Events.

    def submit(self, message: Submit, now: float = 0.0) -> None:
        """A request comes. One that can never be served ends at once, with the reason."""
        key = (message.frontend, message.request_id)
        if key in self._requests:
            return  # sent twice; the first is being served
        self._serial += 1
        request = ScheduledRequest.of(message, self._serial, self.limits.end_tokens, now)
        if message.deadline is not None:
            self._deadlines.add(request)
        self._bound(request)
        self.counters.submitted += 1
        self.counters.resumed += request.is_resumed
        self._now = now
        self._requests[key] = request
        self._by_serial[request.serial] = request
        self.outputs.open(request)
        overload = None if request.is_resumed else self._waiting.overload(request)
        self._waiting.arrive(request)
        if overload is not None:
            self.counters.overloads += 1
            self._end(request, "error", message=overload, cause="overload")
        else:
            self._fit(request)
        if request.num_resumed and request.state is not State.ENDED:
            self._end_if_complete(request)
        self._advance()

    def expire(self, now: float) -> None:
        """Ends the requests whose deadline has passed."""
        self._now = now
        for request in self._deadlines.passed(now, self._by_serial):
            self.counters.deadlines_missed += 1
            self._end(request, "abort", message="its deadline has passed", cause="deadline")
        self._advance()

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        return self._deadlines.next(self._by_serial)

    def _bound(self, request: ScheduledRequest) -> int:
        """Sets how long a request may become; returns how many tokens are left for its answer."""
        room = self._longest - len(request.prompt)
        wanted = request.params.max_tokens
        request.max_total = len(request.prompt) + (room if wanted is None else min(wanted, room))
        return room

    def _fit(self, request: ScheduledRequest) -> None:
        """Ends a waiting request if there is no room for its answer."""
        room = self._bound(request)
        if not len(request.prompt):
            self._end(request, "error", message="the prompt has no tokens", cause="request")
        elif room < 1:
            bound = "max_model_len" if self._longest == self.limits.max_model_len else "the executor's memory"
            self._end(
                request,
                "error",
                message=f"the prompt has {len(request.prompt)} tokens; with {bound} of {self._longest} "
                f"at most {self._longest - 1} leave room for an answer",
                cause="request",
            )

    def abort(self, message: Abort) -> None:
        """Ends requests at once, wherever they are. Unknown ones have ended already."""
        for request_id in message.request_ids:
            request = self._requests.get((message.frontend, request_id))
            if request is not None:
                self.counters.count_abort(request, prefilling=self._running.is_prefilling(request))
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
                self.outputs.drop(request)
                self._forget(request)
        self._advance()

    def executor_ready(self, event: ExecutorReady) -> None:
        """An executor of a new epoch: its memory and its batch are empty."""
        if event.epoch <= max(self._epoch or 0, self._epochs_gone):
            return
        if self._epoch is not None:
            self.executor_gone(self._epoch)
        self._epoch = event.epoch
        self._plan_number = 0
        num_rows = min(event.max_num_seqs, self.limits.max_num_seqs)
        self._running.reset(num_rows)
        if self.speculator is not None:
            self.speculator.reset(num_rows)
        pool_tokens = event.num_blocks * event.block_size
        longest = min(self.limits.max_model_len, event.max_model_len, pool_tokens)
        if longest != self._longest:
            self._longest = longest
            for request in list(self._by_serial.values()):
                self._fit(request)
        self._advance()

    def executor_gone(self, epoch: int, *, died: bool = True) -> None:
        """Whatever was in that executor's memory is lost; the requests that were there wait for the next. If it died,
        one of them may be why."""
        self._epochs_gone = max(self._epochs_gone, epoch)
        if self._epoch is None or epoch < self._epoch:
            return  # late news: its successor is here already
        self._epoch = None
        computing = {serial for step in self._computing for serial in step.chunks.serials.tolist()}
        for request in self._running:
            if died and request.serial in computing:
                count_death(request)
        tried = self._waiting.quarantine.on_trial
        self._lose_memory()
        if died and tried is not None and tried.serial in computing:
            self._end(
                tried,
                "error",
                message="the executor died again and again while it computed this request, at last with no other",
                cause="failure",
            )

    def pool_ready(self, epoch: int, manager: int) -> None:
        """The block manager of that incarnation has a pool for that epoch."""
        if manager < self._manager:
            return  # late news: its successor is here already
        if manager > self._manager and self._pool_epoch is not None:
            self.pool_gone(self._manager)
        self._manager, self._pool_epoch = manager, epoch
        self._advance()

    def pool_gone(self, manager: int) -> None:
        """Nobody knows any more which block is whose; the requests that hold any wait for the next manager."""
        if manager < self._manager:
            return
        self._pool_epoch = None
        self._lose_memory()

    def detokenizer_gone(self) -> None:
        """The next one is told of every open request. Those whose end the former may have kept to itself are
        submitted again, by frontends that have not heard of it."""
        self.outputs.reopen(self._by_serial.values())
        self.counters.reopened += len(self._by_serial)
        self._advance()

    def assigned(self, message: Assigned, now: float = 0.0) -> None:
        """What the block manager granted: the plan of this step."""
        self._now = now
        exchange = self._exchange
        if exchange is None or message.step != exchange.step:
            return  # of a step that was given up meanwhile
        if message.epoch != self._epoch:
            # No judgement about our pool. What happened to it is on its way, and begins the next step.
            self._give_up_exchange()
            return
        chunks, new = self._take_grants(exchange, message)
        self._preempt_if_short(exchange, message)
        stuck = self._find_stuck(exchange, message)
        self._exchange = None
        self._refused = not len(chunks) and bool(len(exchange.growing) or exchange.admitting)
        if len(chunks):
            self._compute(chunks, new, message)
        if stuck is not None:
            self._end(
                stuck,
                "error",
                message=f"the KV-block manager refuses the {stuck.num_tokens} tokens of this request while "
                f"{message.blocks_free} of {message.num_blocks} blocks are free and no other request runs",
            )
        self._advance()

    def _compute(self, chunks: Chunks, new: list[ScheduledRequest], granted: Assigned) -> None:
        """Sends the plan of what was granted."""
        self._plan_number += 1
        drafts, wanted = (NO_DRAFTS, int32()) if self.speculator is None else self.speculator.plan(chunks)
        freed_rows = self._running.take_freed_rows()
        plan = build_plan(self._plan_number, granted, freed_rows, chunks, new, drafts, wanted)
        self._running.planned(chunks)
        self._drawn += self._deferrals.planned(chunks.rows)
        self.counters.steps += 1
        self.counters.steps_ahead += bool(self._computing)
        self._computing.append(Computing(granted.step, self._plan_number, chunks, drafts))
        self._outbox.append((EXECUTORS, plan))

    def stepped(self, message: StepResult, now: float = 0.0) -> None:
        """The tokens that a step drew."""
        self._now = now
        if not self._computing or (message.number, message.epoch) != (self._computing[0].plan, self._epoch):
            return  # of a step that was given up meanwhile
        step, _, chunks, drafts = self._computing.popleft()
        self._computed_step = step
        self._refused = False
        going = self._running.computed(chunks)
        self.counters.rows_wasted += len(chunks) - int(going.sum())  # they ended while this was at hand
        self._leave(chunks)
        for index, piece in split(message.prompt_logprobs).items():
            if going[index]:
                request = self._running.at(int(chunks.rows[index]))
                self._take_prompt_logprobs(request, int(chunks.starts[index]), piece)
        drawing, going = chunks[chunks.draws], going[chunks.draws]
        if drafts:
            self._take_verified(drawing, going, drafts, message)
        else:
            self._take_drawn(drawing, going, message)
        if self.speculator is not None:
            propose = self.speculator.stepped(chunks, message, now)
            if propose is not None:
                self._outbox.append((DRAFTER, propose))
        acquitted = self._waiting.quarantine.acquit()
        if acquitted is not None:
            self.counters.suspects_tried += 1
            if self._waiting.quarantine.active:  # the next one is to be alone
                self._requeue(acquitted)
        self._advance()

    def _take_drawn(self, drawing: Chunks, going: BoolVector, message: StepResult) -> None:
        """One token of each."""
        for place in message.void:
            self._take_void(drawing, going, place)
        for place in message.deferred:
            self._defer(drawing, going, place, message.number)
        for place, why in message.failed.items():
            if going[place]:
                self._end(self._running.at(int(drawing.rows[place])), "error", message=why, cause="failure")
                going[place] = False
        for place, piece in split(message.logprobs).items():
            if going[place]:
                self.outputs.logprobs(self._running.at(int(drawing.rows[place])), piece)
        token_ids = message.token_ids
        if not going.all():
            drawing, token_ids = drawing[going], token_ids[going]
        self._take_computed(drawing, token_ids)
        self._deferrals.settle()

    def _take_verified(self, drawing: Chunks, going: BoolVector, drafts: Drafts, message: StepResult) -> None:
        """The tokens of each up to the first that follows a wrong draft, one after another."""
        assert self.speculator is not None
        drafts = drafts._replace(counts=drawing.drafts)
        accepted, places = drafts.verify(message.token_ids)
        self.speculator.verified(drawing.rows, going, drafts, accepted)
        pieces = split(message.logprobs)
        for index in np.flatnonzero(np.isin(drafts.first_places, message.void)).tolist():
            self._take_void(drawing, going, index)
        first = np.cumsum(accepted + 1) - accepted - 1
        for ahead in range(int(accepted.max()) + 1):
            going = going & (accepted >= ahead) & self._running.are_running(drawing.rows)
            some = message.failed or message.deferred or pieces
            for index in np.flatnonzero(going).tolist() if some else ():
                place = int(places[first[index] + ahead])
                request = self._running.at(int(drawing.rows[index]))
                if place in message.failed:
                    self._end(request, "error", message=message.failed[place], cause="failure")
                    going[index] = False
                elif place in message.deferred:
                    self._defer(drawing, going, index, message.number)
                elif place in pieces:
                    self.outputs.logprobs(request, pieces[place])
            self._take_computed(drawing[going], message.token_ids[places[first[going] + ahead]])
        self._deferrals.settle()

    def _take_computed(self, drawing: Chunks, token_ids: Int32Vector) -> None:
        """Tokens of rows that were computed up to them."""
        self._drawn += self._deferrals.drew(drawing.rows)
        self._drawn.append(Drawn(drawing.serials, token_ids))
        self._take_tokens(drawing, token_ids)

    def _defer(self, drawing: Chunks, going: BoolVector, index: int, plan: int) -> None:
        """A row was computed, and its token comes later."""
        if going[index]:
            going[index] = False
            self.counters.rows_deferred += 1
            self._drawn += self._deferrals.drew(drawing.rows[index : index + 1])
            self._deferrals.defer(int(drawing.rows[index]), plan)

    def _take_void(self, drawing: Chunks, going: BoolVector, index: int) -> None:
        """A row was not computed, since its last token had been deferred."""
        if going[index]:
            going[index] = False
            self.counters.rows_void += 1
            self._running.take_back(int(drawing.rows[index]), int(drawing.starts[index]))

    def proposed(self, message: Proposed, now: float = 0.0) -> None:
        """Drafts have come."""
        if self.speculator is not None:
            self._take_drafts(self.speculator.proposed(message, now))

    def drafts_late(self, now: float) -> None:
        """Who has waited too long for drafts goes on without."""
        if self.speculator is not None:
            self._take_drafts(dict.fromkeys(self.speculator.late(now), NOTHING))

    def drafter_gone(self) -> None:
        """Nobody proposes anything any more."""
        if self.speculator is not None:
            self._take_drafts(dict.fromkeys(self.speculator.drafter_down(), NOTHING))

    def _take_drafts(self, drafts: dict[int, Guess]) -> None:
        assert self.speculator is not None
        for serial, found in drafts.items():
            request = self._by_serial.get(serial)
            if request is not None:
                self.speculator.came(request, found)
        self._advance()

    def late_tokens(self, message: LateTokens, now: float = 0.0) -> None:
        """Tokens that a step deferred. Those of requests that have ended, or gave way, are of no account."""
        self._now = now
        if message.epoch != self._epoch:
            return
        logprobs = split(message.logprobs)
        for place, row in enumerate(message.rows.tolist()):
            if not self._deferrals.awaits(row, message.number):
                continue
            request = self._running.at(row)
            if place in message.failed:
                self._end(request, "error", message=message.failed[place], cause="failure")
                continue
            if place in logprobs:
                self.outputs.logprobs(request, logprobs[place])
            token_ids = message.token_ids[place : place + 1]
            drawing = Chunks.of([request.serial], [row], [0], [1], [True])
            self._deferrals.arrived(row, Drawn(drawing.serials, token_ids))
            self._take_tokens(drawing, token_ids)
        self._deferrals.settle()
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
        if self._epoch is None or self._epoch != self._pool_epoch or not self.outputs.stream.open:
            return
        ahead = self.limits.async_scheduling and not self._waiting.quarantine.active
        if self._exchange is not None or len(self._computing) > ahead:
            return
        if self._refused and not self._freed and (self._computing or self._awaits_drafts):
            return
        growing = self._running.choose(self.limits.max_num_batched_tokens, self._chunk_max)
        budget = self.limits.max_num_batched_tokens - growing.num_tokens
        admitting = [] if self._memory_short else self._choose_waiting(budget)
        self._memory_short = False
        if not (len(growing) or admitting or self._freed):
            return
        self._running.enter(growing)
        self._step += 1
        self._exchange = Exchange(self._step, growing, admitting)
        freed, self._freed = self._freed, []
        drawn, self._drawn = self._drawn, []
        assign = build_assign(
            self._exchange,
            growing.ends if self.speculator is None else self.speculator.room_for(growing),
            self._epoch,
            self._manager,
            freed,
            drawn=drawn,
            computed_step=self._computed_step,
            budget=budget,
            chunk_max=self._chunk_max,
        )
        self._outbox.append((BLOCKS, assign))

    @property
    def _awaits_drafts(self) -> bool:
        """Whether running requests are held back by a drafter: they hold memory that no step will free."""
        return self.speculator is not None and self.speculator.next_deadline is not None

    def _choose_waiting(self, budget: int) -> list[ScheduledRequest]:
        """The waiting requests that are put to the block manager.

        How much each needs is only known with its cached prefix, so more are asked for than the budget
        holds without one; the manager admits as many as fit. While the pool is full and nothing is freed,
        only the first is asked for: the others would be refused with it.
        """
        if self._waiting.quarantine.active:
            return [] if len(self._running) or self._computing else self._waiting.take_suspect()
        count = min(len(self._running.free_rows), max(0, budget)) if len(self._waiting) else 0
        if self._pool_full and not self._freed:
            count = min(count, 1)
        chosen: list[ScheduledRequest] = []
        tokens = budget * OVERASK
        if not count:
            return chosen
        for request in self._waiting.take(count, self._running.num_long_prefills()):
            chosen.append(request)
            tokens -= request.num_tokens
            if tokens <= 0:
                break
        return chosen

    def _take_grants(self, exchange: Exchange, message: Assigned) -> tuple[Chunks, list[ScheduledRequest]]:
        """The chunks of this step, and those of their requests that are new in the batch."""
        chunks, _ = exchange.growing.parted(message.num_grown)
        new = exchange.admitting[: len(message.admitted)]
        for request, grant in zip(new, message.admitted, strict=True):
            assert grant.serial == request.serial, "admissions are granted in order"
            self._admit(request, grant.num_cached_tokens)
            self.counters.count_restored(request, grant.num_restored_tokens)
        if new:
            chunks += admissions(new, message.admitted)
        for request in exchange.admitting[len(new) :]:
            self._put_back(request)
            self.counters.admissions_refused += request.state is State.WAITING
        computed = chunks.num_tokens
        assert computed <= self.limits.max_num_batched_tokens, f"{computed} tokens are over the budget"
        refused = len(new) < len(exchange.admitting)
        self._pool_full = refused and computed < self.limits.max_num_batched_tokens
        self.counters.chunk_splits += len(chunks) - int(chunks.draws.sum())
        return chunks, new

    def _admit(self, request: ScheduledRequest, cached: int) -> None:
        """A request gets a row; an aborted one too, for the one step that it was granted."""
        self.counters.tokens_cached += cached
        if request.state is State.ASKED:
            request.state = State.RUNNING
            if request.admitted_at is None:
                request.num_cached = cached
                request.admitted_at = self._now
            self.outputs.learned(request)
        self._running.admit(request, cached)
        if self.speculator is not None:
            self.speculator.admit(request)

    def _put_back(self, request: ScheduledRequest) -> None:
        """An admission that was not granted; an aborted request is gone by now."""
        if request.state is State.ASKED:
            self._waiting.put_back(request)

    def _preempt_if_short(self, exchange: Exchange, message: Assigned) -> None:
        """Growth was refused: the policy's victim gives way."""
        _, refused = exchange.growing.parted(message.num_grown)
        if not len(refused):
            return
        self.counters.growth_refused += len(refused)
        self._memory_short = True
        # Only one that no step names can give way; growth is refused from the end of the policy's order,
        # so the policy's victim is normally among them. One that is still computed can be next time.
        self._leave(refused)
        if self.speculator is not None and self.speculator.make_room(refused):
            return
        candidates = self._running.in_no_step(refused.rows.tolist())
        if candidates:
            victim = self.policy.victim(candidates)
            if victim not in candidates:
                raise ValueError(
                    f"{type(self.policy).__name__}.victim returned {victim!r}, which is none of those it was given"
                )
            self._preempt(victim)

    def _find_stuck(self, exchange: Exchange, message: Assigned) -> ScheduledRequest | None:
        """The first admission, if it was refused though nothing else holds memory or is about to free any:
        asking again would be answered the same."""
        holding = len(exchange.growing) + len(message.admitted) + len(self._running)
        if holding or self._freed or self._computing:
            return None
        first = exchange.admitting[0] if exchange.admitting else None
        return first if first is not None and first.state is State.WAITING else None

    def _preempt(self, request: ScheduledRequest) -> None:
        """Back to the queue: its blocks are freed."""
        self.counters.preemptions += 1
        request.num_preemptions += 1
        self._requeue(request)

    def _requeue(self, request: ScheduledRequest) -> None:
        """A running request waits again, where it stood; it resumes by computing its tokens again."""
        self._running.remove(request)
        self._release(request)
        self._waiting.add(request)

    def _take_prompt_logprobs(self, request: ScheduledRequest, start: int, piece: Piece) -> None:
        """Of the tokens that follow those computed from `start`; after a preemption, some have come before."""
        known = request.num_scored - start
        if known < len(piece):
            request.num_scored = start + len(piece)
            self.outputs.prompt_logprobs(request, piece.part(known))

    def _take_tokens(self, drawing: Chunks, token_ids: Int32Vector) -> None:
        """The tokens that were drawn for requests that run."""
        rows = drawing.rows
        self._running.drew(rows, token_ids)
        for request in self._running.first_drawn(rows):
            request.first_token_at = self._now
            self.outputs.learned(request)
        self.outputs.tokens(drawing.serials, token_ids)
        self._waiting.drew(map(self._running.at, rows.tolist()))
        for request in self._running.candidates(rows, token_ids, self.limits.end_tokens):
            self._end_if_complete(request)

    def _end_if_complete(self, request: ScheduledRequest) -> None:
        """Ends a request if its last token does."""
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
        cause: EndCause | None = None,
    ) -> None:
        """Ends a request, with its terminal message to the detokenizer."""
        admitted, first = request.admitted_at, request.first_token_at
        finished = Finished(
            reason=reason,
            stop_reason=stop_reason,
            message=message,
            cause=cause,
            num_output_tokens=len(request.output),
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
            queue_seconds=(self._now if admitted is None else admitted) - request.arrived_at,
            prefill_seconds=0.0 if admitted is None else (self._now if first is None else first) - admitted,
            decode_seconds=0.0 if first is None else self._now - first,
        )
        self.outputs.finish(request, finished)
        self._forget(request)

    def _forget(self, request: ScheduledRequest) -> None:
        """Takes a request out of every list. What it holds is freed as soon as nothing computes it."""
        del self._requests[(request.frontend, request.request_id)]
        del self._by_serial[request.serial]
        self.counters.ended += 1
        if self.speculator is not None:
            self.speculator.forget(request)
        state, request.state = request.state, State.ENDED
        self._waiting.end(request, waited=state is State.WAITING)
        if state is State.RUNNING:
            self._running.remove(request)
            if not self._running.is_named(request):
                self._release(request)

    def _leave(self, chunks: Chunks) -> None:
        """A step no longer needs these requests' rows and blocks."""
        for request in self._running.leave(chunks):
            self._release(request)

    def _release(self, request: ScheduledRequest) -> None:
        """Gives back a request's row and blocks, with the next messages."""
        self._freed.append(request.serial)
        self._deferrals.forget(request.held_row)
        self._running.release(request)

    def _give_up_exchange(self) -> None:
        """What was asked for will not be computed."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            for request in exchange.admitting:
                self._put_back(request)
            self._leave(exchange.growing)

    def _lose_memory(self) -> None:
        """What was computed is lost, and what is being computed is not waited for: whoever runs goes back to
        the queue. Tokens that are drawn twice are drawn alike."""
        self._give_up_exchange()
        while self._computing:
            chunks = self._computing.popleft().chunks
            self._running.computed(chunks)
            self._leave(chunks)
        self.counters.recomputed += len(self._running)
        for request in list(self._running):
            self._requeue(request)
        self._freed, self._drawn = [], []
        self._refused = self._memory_short = self._pool_full = False

    # Looking in.

    @property
    def num_waiting(self) -> int:
        """Requests that hold no memory."""
        return len(self._waiting) + (len(self._exchange.admitting) if self._exchange else 0)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._running)

    def count(self) -> dict[str, int]:
        """What happened so far."""
        return vars(self.counters) | ({} if self.speculator is None else self.speculator.count())

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
        tokens = sum(one.num_tokens for one in self._by_serial.values() if one.state is State.WAITING)
        counted = self._waiting.num_tokens
        assert tokens == counted, f"{tokens} tokens wait, {counted} are counted"
        at_hand = [step.chunks for step in self._computing]
        if self._exchange is not None:
            at_hand.append(self._exchange.growing)
        self._running.check_integrity(reduce(add, at_hand, Chunks.of()))
        for request in self._by_serial.values():
            if request.state is not State.RUNNING:
                assert request.row is None, f"request {request.serial} holds a row while it waits"
