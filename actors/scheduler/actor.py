"""The scheduler's shell: passes events to the core, and sends the core's messages."""

from __future__ import annotations

import asyncio
from typing import Any

from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.address import SUPERVISOR, index_of, replica_of
from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.core import BLOCKS, DETOKENIZER, DRAFTER, EXECUTOR, SchedulerCore
from pageant.actors.scheduler.load import LoadMeter
from pageant.actors.scheduler.policies import make_policy
from pageant.protocol.adapters import AdapterUse, GetAdapterUse
from pageant.protocol.allocation import Assigned, PoolReady
from pageant.protocol.drafting import Proposed, Speculation
from pageant.protocol.lifecycle import (
    PAUSED,
    AwaitRest,
    PauseMode,
    PauseScheduling,
    ResumeScheduling,
    SchedulingPaused,
    SchedulingResumed,
)
from pageant.protocol.outputs import Stopped
from pageant.protocol.replicas import MOVES, ROLE, Move, ReplicaRole
from pageant.protocol.roles import ROUTER, SCHEDULER
from pageant.protocol.routing import LOAD_SECONDS
from pageant.protocol.scheduling import GetSchedulerStatistics, SchedulerStatistics
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.stepping import ExecutorReady, LateTokens, StepResult
from pageant.protocol.storing import StoredBlocksArrived
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import SWAPPED, ActorDown, ActorUp, DeathsCharged, Facts

MAX_NUM_SEQS = 65_536
# Seconds between two looks at deadlines: a request with an earlier one may have come.
DEADLINE_POLL = 0.05
POSITIVE = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_waiting_requests"),
    *("max_waiting_tokens", "long_prefill_token_threshold", "max_long_partial_prefills"),
    "max_steps_per_plan",
)


class Scheduler(Actor):
    """Continuous batching with a token budget, chunked prefill, and preemption by recomputation."""

    role = SCHEDULER
    features = SCHEDULER.features

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the scheduler.

        Attributes:
            policy: `fcfs`, `priority`, `shortest`, `fair` (between tenants) or `deadline`, or `module:Class` of
                your own.
            max_num_seqs: the most requests in one batch.
            max_num_batched_tokens: the most tokens computed in one step.
            max_model_len: the most tokens of a request, prompt and output together.
            max_waiting_requests, max_waiting_tokens: bounds of the queue; requests beyond them are refused at
                once.
            long_prefill_token_threshold, max_long_partial_prefills: a prompt longer than the first is computed in
                chunks of that size, at most the second number of them side by side; other requests overtake the
                rest.
            async_scheduling: plan the next step while one is computed.
            short_step_seconds: plan two steps ahead while steps take less than this.
            max_steps_per_plan: the steps of a multi-step plan. Such plans are made while no request waits and all
                running ones need only their end (no streams, no log-probabilities, no stop strings).
            eos_token_ids: the model's end tokens.
            speculation: settings of drafts (`pageant.protocol.drafting.Speculation`).
            vocab_size: the model's vocabulary size.
            replica_role: what the replica is for: `prefill` computes prompts, `decode` goes on with outputs. Filled in.
            paused: begin paused, in this mode. The lifecycle actor sets it, for the next life of a scheduler.
        """

        policy: str = "fcfs"
        max_num_seqs: int = 256
        max_num_batched_tokens: int = 2048
        max_model_len: int = 4096
        max_waiting_requests: int | None = None
        max_waiting_tokens: int | None = None
        long_prefill_token_threshold: int | None = None
        max_long_partial_prefills: int = 1
        async_scheduling: bool = True
        short_step_seconds: float = 0.005
        max_steps_per_plan: int = 8
        eos_token_ids: tuple[int, ...] = ()
        speculation: Speculation | None = None
        vocab_size: int | None = None
        paused: PauseMode | None = None
        replica_role: ReplicaRole = "both"

        def __post_init__(self) -> None:
            for name in POSITIVE:
                value = getattr(self, name)
                if value is not None and value < 1:
                    raise ValueError(f"{name} is {value}; expected at least 1")
            if self.short_step_seconds < 0:
                raise ValueError(f"short_step_seconds is {self.short_step_seconds}; expected at least 0")
            if self.max_num_seqs > MAX_NUM_SEQS:
                raise ValueError(f"max_num_seqs is {self.max_num_seqs}; expected at most {MAX_NUM_SEQS}")
            # A policy that cannot be made is refused before anything starts.
            make_policy(self.policy)

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        limits = Limits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            end_tokens=frozenset(options.eos_token_ids),
            async_scheduling=options.async_scheduling,
            short_step_seconds=options.short_step_seconds,
            max_steps_per_plan=options.max_steps_per_plan,
            max_waiting_requests=options.max_waiting_requests,
            max_waiting_tokens=options.max_waiting_tokens,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            max_long_partial_prefills=options.max_long_partial_prefills,
        )
        self.core = SchedulerCore(
            make_policy(options.policy), limits, options.speculation, options.vocab_size
        )
        if options.paused is not None:
            self.core.pause(options.paused)
        self._meter = LoadMeter(self.core)
        # The router is up, and is told of the work here.
        self._has_router = self._tells_load = False
        # Set whenever a pause is complete, or is over.
        self._rested = asyncio.Event()
        self._awaits_deadlines = self._awaits_drafts = False
        self._frontends: dict[str, int] = {}
        # The lowest incarnation of the detokenizer that may live. Messages of earlier ones are ignored.
        self._detokenizer = 0

    async def on_start(self) -> None:
        self._began = self.clock.now()
        for address in (EXECUTOR, "blocks", "detokenizer"):
            self.watch(address)
        if self.options.speculation is not None and not self.options.speculation.on_device:
            self.watch(DRAFTER)
        if index_of(replica_of(self.name)) is not None:
            self.watch(ROUTER.name)

    def facts(self) -> Facts:
        """Return the facts that tell whether it is paused, that its requests can be moved, and what it is for."""
        role = self.options.replica_role
        facts: Facts = {PAUSED: int(self.core.paused is not None), MOVES: 1}
        return facts if role == "both" else {**facts, ROLE: role}

    def _flush(self) -> None:
        if self.core.paused is None or self.core.is_at_rest:
            self._rested.set()
        for address, message in self.core.take_outbox():
            self.tell(address, message)
            if address == DRAFTER and not self._awaits_drafts:
                self._awaits_drafts = True
                self.spawn(self._await_drafts())
        if self._has_router and not self._tells_load:
            self._tells_load = True
            self.spawn(self._tell_load())

    async def _tell_load(self) -> None:
        """Tell the router of the work here, until nothing changes any more."""
        while (load := self._meter.take()) is not None:
            self.tell(ROUTER.name, load)
            await asyncio.sleep(LOAD_SECONDS)
        self._tells_load = False

    @receives
    def submit(self, message: Submit) -> None:
        """Take a request from a frontend. Requests of a former life of that frontend are aborted."""
        known = self._frontends.get(message.frontend)
        if known is None:
            self.watch(message.frontend)
        elif known < self.sender_incarnation:
            self.core.frontend_gone(message.frontend)
        self._frontends[message.frontend] = self.sender_incarnation
        if message.ticket and self._has_router:
            self._meter.submitted(message.ticket)
        if message.resume is not None:
            self._follow_detokenizer(message.resume.detokenizer)
        self.core.submit(message, self.clock.now())
        if message.deadline is not None and not self._awaits_deadlines:
            self._awaits_deadlines = True
            self.spawn(self._await_deadlines())
        self._flush()

    @receives
    def stored_arrived(self, message: StoredBlocksArrived) -> None:
        """Ask for admissions again: blocks from a store are there, or will not come."""
        self.core.stored_arrived(self.sender_incarnation)
        self._flush()

    async def _await_deadlines(self) -> None:
        while (deadline := self.core.next_deadline) is not None:
            await asyncio.sleep(min(max(0.0, deadline - self.clock.now()), DEADLINE_POLL))
            self.core.expire(self.clock.now())
            self._flush()
        self._awaits_deadlines = False

    @receives
    def abort(self, message: Abort) -> None:
        self.core.abort(message)
        self._flush()

    @receives
    def move(self, message: Move) -> None:
        """End requests that go on at another replica. A frontend may know first that an executor died."""
        if message.epoch:
            self._executor_died(message.epoch)
        moved = self.core.move(message)
        self._flush()
        self.tell(message.frontend, moved)

    @receives
    def assigned(self, message: Assigned) -> None:
        self._meter.assigned(message)
        self.core.assigned(message, self.clock.now())
        self._flush()

    @receives
    def stepped(self, message: StepResult) -> None:
        self.core.stepped(message, self.clock.now())
        if self._has_router:
            self._meter.stepped(self.core.step_tokens, message.seconds)
        self._flush()

    @receives
    def late_tokens(self, message: LateTokens) -> None:
        self.core.late_tokens(message, self.clock.now())
        self._flush()

    def _follow_detokenizer(self, incarnation: int) -> None:
        """Start over with a new incarnation of the detokenizer.

        A frontend may know of it first, and may have asked its predecessor last. Tokens sent to a dead
        detokenizer would otherwise never be sent again.
        """
        if incarnation > self._detokenizer:
            self._detokenizer = incarnation
            self.core.detokenizer_gone()

    def _is_meant(self, message: Stopped | Acknowledge | Resume) -> bool:
        """Tell whether a detokenizer's message comes from one that lives and is meant for this scheduler.

        A message for the former scheduler may reach this one, whose requests have other serials and whose
        batches have other numbers.
        """
        for_another = message.incarnation not in (0, self.incarnation)
        return self.sender_incarnation >= self._detokenizer and not for_another

    @receives
    def stopped(self, message: Stopped) -> None:
        if self._is_meant(message):
            self.core.stopped(message)
            self._flush()

    @receives
    def introduced(self, event: ExecutorReady | PoolReady) -> None:
        """Take note of an executor or a block manager that is ready."""
        if isinstance(event, ExecutorReady):
            self._meter.executor_ready(event)
            self.core.executor_ready(event)
        else:
            self.core.pool_ready(event.epoch, self.sender_incarnation)
        self._flush()

    @receives
    def proposed(self, message: Proposed) -> None:
        self.core.proposed(message, self.clock.now())
        self._flush()

    async def _await_drafts(self) -> None:
        """Continue without drafts when the drafter does not answer in time."""
        speculator = self.core.speculator
        while speculator is not None and (deadline := speculator.next_deadline) is not None:
            await asyncio.sleep(max(0.0, deadline - self.clock.now()))
            self.core.drafts_late(self.clock.now())
            self._flush()
        self._awaits_drafts = False

    @receives
    def acknowledged(self, message: Acknowledge) -> None:
        if self._is_meant(message):
            self.core.acknowledged(message.up_to)
            self._flush()

    @receives
    def resume(self, message: Resume) -> None:
        """Send the detokenizer the batches that it missed."""
        if not self._is_meant(message):
            return
        for batch in self.core.outputs.stream.resume(message.after):
            self.tell(DETOKENIZER, batch)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Send a new detokenizer the batches that were not acknowledged, and start to use a new drafter."""
        if event.address == DRAFTER and self.core.speculator is not None:
            self.core.speculator.drafter_up()
        if event.address == ROUTER.name:
            self._has_router = True
            self._meter.start_over()
            self._flush()
        if event.address == DETOKENIZER:
            self._detokenizer = max(self._detokenizer, event.incarnation)
            for batch in self.core.outputs.stream.resume(0):
                self.tell(event.address, batch)

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Take back the work of an actor that died. It is done again when the successor is up."""
        if event.address == EXECUTOR:
            self._executor_died(event.incarnation, died=event.reason != SWAPPED)
        elif event.address == BLOCKS:
            self.core.pool_gone(event.incarnation)
        elif event.address == DRAFTER:
            self.core.drafter_gone()
        elif event.address == ROUTER.name:
            self._has_router = False
        elif event.address == DETOKENIZER:
            self._follow_detokenizer(event.incarnation + 1)
        elif self._frontends.get(event.address, event.incarnation + 1) <= event.incarnation:
            del self._frontends[event.address]
            self.core.frontend_gone(event.address)
        self._flush()

    def _executor_died(self, incarnation: int, *, died: bool = True) -> None:
        if self.core.executor_gone(incarnation, died=died):
            self.tell(SUPERVISOR, DeathsCharged(name=replica_of(self.name) + EXECUTOR))

    # Pauses.

    @receives
    def pause(self, request: PauseScheduling) -> SchedulingPaused:
        """Stop planning steps."""
        core = self.core
        pauses = not (request.if_idle and core.num_open)
        if pauses:
            core.pause(request.mode, release=request.release)
            self._flush()
            self.announce()
        return SchedulingPaused(done=pauses, num_open=core.num_open)

    @receives(concurrent=True)
    async def await_rest(self, request: AwaitRest) -> SchedulingPaused:
        """Answer when the pause is complete, or over."""
        while self.core.paused is not None and not self.core.is_at_rest:
            self._rested.clear()
            await self._rested.wait()
        return SchedulingPaused(done=self.core.paused is not None, num_open=self.core.num_open)

    @receives
    def resume_scheduling(self, request: ResumeScheduling) -> SchedulingResumed:
        """Plan steps again."""
        self.core.resume()
        self._flush()
        self.announce()
        return SchedulingResumed()

    @receives
    def adapter_use(self, request: GetAdapterUse) -> AdapterUse:
        """Return how many open requests use an adapter."""
        return AdapterUse(num_open=sum(one.adapter == request.key for one in self.core.requests))

    @receives
    def statistics(self, request: GetSchedulerStatistics) -> SchedulerStatistics:
        """Return the numbers of requests and the counters. Checks the core's integrity first if no request is
        open.
        """
        if not (self.core.num_waiting or self.core.num_running):
            self.core.check_integrity()
        return SchedulerStatistics(
            num_waiting=self.core.num_waiting,
            num_running=self.core.num_running,
            counters=self.core.count(),
            idle_seconds=self._idle_seconds(),
        )

    def _idle_seconds(self) -> float:
        used_at = self.core.requests.used_at
        return 0.0 if self.core.num_open else self.clock.now() - (self._began if used_at is None else used_at)
