"""A replica in model time: the real cores of scheduler and block manager, and a device that takes its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.followers import Follower
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.core import BLOCKS, SchedulerCore
from pageant.actors.scheduler.load import LoadMeter
from pageant.actors.scheduler.policies import make_policy
from pageant.protocol.allocation import Assign
from pageant.protocol.following import BlockEvents
from pageant.protocol.message import Message
from pageant.protocol.outputs import TokenBatch
from pageant.protocol.replicas import Move
from pageant.protocol.routing import Load
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Resumption, Submit
from pageant.protocol.stepping import CutShort, ExecutorReady, StepPlan
from pageant.scripts.planning.copies import Action, PlannedCopies, PlannedStore
from pageant.scripts.planning.device import END_TOKEN, EPOCH, PlannedDevice, Said
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.replay.costs import StepCosts

FRONTEND = "frontend"
MANAGER = 1
"""The incarnation of the block manager."""
STEPS_PER_PLAN = 64
"""The most steps of a plan: each costs the cores about the same, however many steps it has."""


@dataclass(frozen=True)
class ReplicaShape:
    """Sizes and settings of a replica.

    Attributes:
        num_blocks, block_size: of its KV memory, and in tokens.
        windows: the attention window of each layer group.
        policy: the scheduler's.
        max_num_seqs, max_num_batched_tokens, max_model_len, async_scheduling, short_step_seconds: see
            `Scheduler.Options`.
        max_steps_per_plan: the most steps that the cores are asked for at a time. The times of tokens are those of
            single steps all the same.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    windows: tuple[int | None, ...] = (None,)
    policy: str = "fcfs"
    async_scheduling: bool = True
    short_step_seconds: float = 0.005
    max_steps_per_plan: int = STEPS_PER_PLAN


class Progress(NamedTuple):
    """News of a request, beside its tokens."""

    number: int
    """The request's."""
    cached: int | None
    """Tokens of the prompt that were found cached, where the request has its first token; None else."""
    ended: str | None
    """The reason of its end; None while it goes on."""


class PlannedReplica:
    """A replica. Times (`now`) are seconds of model time.

    Args:
        costs: of a step, by its size.
        speed: how many times as fast as `costs` says the device is.
        store: keeps its blocks for other replicas; None is none.
    """

    def __init__(
        self,
        name: str,
        shape: ReplicaShape,
        costs: StepCosts,
        speed: float = 1.0,
        store: PlannedStore | None = None,
    ) -> None:
        limits = Limits(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_len,
            end_tokens=frozenset((END_TOKEN,)),
            async_scheduling=shape.async_scheduling,
            short_step_seconds=shape.short_step_seconds,
            max_steps_per_plan=shape.max_steps_per_plan,
            continues_plans=False,
        )
        self.name = name
        # The largest share of the memory that requests held.
        self.memory = 0.0
        self._shape = shape
        self._core = SchedulerCore(make_policy(shape.policy), limits)
        pool = BlockPool(shape.num_blocks)
        self._blocks = Allocation(pool, shape.block_size, windows=shape.windows)
        self._copies = None if store is None else PlannedCopies(store, self._blocks, self._stored_arrived)
        self._follower = Follower(tokens=False)
        self._meter = LoadMeter(self._core)
        self._device = PlannedDevice(
            costs,
            speed,
            async_scheduling=shape.async_scheduling,
            short_step_seconds=shape.short_step_seconds,
        )
        # The numbers of open requests by the scheduler's serial, and the tokens of their outputs by number.
        self._numbers: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        # Numbers of requests whose outputs go on elsewhere after the first token, and of those that now do.
        self._handing: set[int] = set()
        self._handed: list[int] = []
        self._progress: list[Progress] = []
        self._said: list[Said] = []
        ready = ExecutorReady(
            epoch=EPOCH,
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            windows=shape.windows,
            max_num_seqs=shape.max_num_seqs,
            max_model_len=shape.max_model_len,
            device="none",
            dtype="none",
            multi_step=shape.max_steps_per_plan > 1,
        )
        self._meter.executor_ready(ready)
        self._core.executor_ready(ready)
        self._core.pool_ready(EPOCH, MANAGER)
        self._blocks.follow(self._follower.note)
        self._pump(0.0)

    @property
    def preemptions(self) -> int:
        """Return how often requests gave up their memory for others."""
        return self._core.counters.preemptions

    @property
    def busy_seconds(self) -> float:
        """Return the seconds in which the device computed."""
        return self._device.busy_seconds

    @property
    def next_at(self) -> float | None:
        """Return the seconds at which the plan under way is over; None while the device rests."""
        return self._device.next_at

    def submit(
        self,
        number: int,
        request: PlannedRequest,
        now: float,
        *,
        ticket: int = 0,
        expected: int | None = None,
        past: Resumption | None = None,
        handover: bool = False,
    ) -> None:
        """Take a request at `now`.

        Args:
            handover: its output goes on at another replica after the first token.
            ticket, expected: the router's ticket, and the tokens of the prompt that it expects to be computed.
            past: of a request that comes from another replica.
        """
        self._outputs[number] = request.output_tokens
        self._meter.submitted(ticket)
        if handover:
            self._handing.add(number)
        self._core.submit(
            Submit(
                request_id=str(number),
                frontend=FRONTEND,
                prompt_token_ids=request.prompt,
                params=self._params(number, request),
                ticket=ticket,
                expected_tokens=expected,
                resume=past,
                handover=handover,
            ),
            now,
        )
        self._pump(now)

    def release(self, number: int, now: float) -> bool:
        """End a request that goes on at another replica. Return whether it does: it may be over."""
        said = self._device.forget(number, now)
        if said is None:
            return False
        if said.times:
            self._said.append(said)
        self._core.move(Move(frontend=FRONTEND, request_ids=(str(number),)))
        self._pump(now)
        return True

    def step(self, now: float) -> None:
        """End the plan that is over at `now`, and begin the next."""
        finished = self._device.finish()
        self._said += finished.said
        self._device.begin(now)
        self._core.stepped(finished.result, now)
        if self._copies is not None:
            self._copies.computed(finished.result.number, finished.tokens, finished.durations, now)
        for seconds in finished.durations:
            self._meter.stepped(finished.tokens, seconds)
        self._pump(now)

    def take_said(self) -> list[Said]:
        """Return the output since the last call."""
        said, self._said = self._said, []
        return said

    def take_handed(self) -> list[int]:
        """Return the numbers of requests that are to go on elsewhere since the last call."""
        handed, self._handed = self._handed, []
        return handed

    def take_timers(self) -> list[tuple[float, Action]]:
        """Return what is to happen later, for `happen` at the times, since the last call."""
        return [] if self._copies is None else self._copies.take_timers()

    def happen(self, action: Action, now: float) -> None:
        """Let something happen that was to happen at `now`."""
        action(now)
        self._pump(now)

    def _stored_arrived(self) -> None:
        self._core.stored_arrived(MANAGER)

    def take_progress(self) -> list[Progress]:
        """Return what else became of requests since the last call."""
        progress, self._progress = self._progress, []
        return progress

    def take_events(self) -> Iterator[BlockEvents]:
        """Return the blocks that were stored and removed since the last call."""
        if self._follower.has_events:
            yield from self._follower.take(EPOCH, self._shape.block_size, self._blocks.stored)

    def take_load(self) -> Load | None:
        """Return what the scheduler has to do; None where that has not changed."""
        return self._meter.take()

    def _params(self, number: int, request: PlannedRequest) -> SamplingParams:
        """Return parameters of a request, which let plans have several steps where the shape says so."""
        several = self._shape.max_steps_per_plan > 1
        kind = RequestOutputKind.FINAL_ONLY if several else RequestOutputKind.CUMULATIVE
        return SamplingParams(seed=number, max_tokens=request.most_tokens, detokenize=False, output_kind=kind)

    def _pump(self, now: float) -> None:
        """Carry messages between the cores until both are silent."""
        while outbox := self._core.take_outbox():
            for address, message in outbox:
                self._deliver(address, message, now)
        if self._copies is not None:
            self._copies.tend(self._device.last_plan, now)
        self._device.begin(now)

    def _deliver(self, address: str, message: Message, now: float) -> None:
        if address == BLOCKS:
            assert isinstance(message, Assign)
            assigned = self._blocks.assign(message)
            self._meter.assigned(assigned)
            if assigned.num_blocks:
                self.memory = max(self.memory, 1 - assigned.blocks_free / assigned.num_blocks)
            self._core.assigned(assigned, now)
        elif isinstance(message, StepPlan):
            self._device.add(message, self._outputs)
        elif isinstance(message, CutShort):
            self._device.cut(message.number, now)
        elif isinstance(message, TokenBatch):
            self._take(message)
            self._core.acknowledged(message.number)

    def _take(self, batch: TokenBatch) -> None:
        for opened in batch.opened:
            self._numbers[opened.serial] = int(opened.request_id)
        for index in sorted(batch.facts.keys() | batch.finished.keys()):
            facts, finished = batch.facts.get(index), batch.finished.get(index)
            serial = int(batch.serials[index])
            number = self._numbers[serial]
            cached = None if facts is None else facts.num_cached_tokens
            if finished is not None and finished.cause == "moved" and number in self._handing:
                self._progress.append(Progress(number, cached, None))
                self._device.drop(number)
                self._handed.append(number)
            elif finished is None or finished.cause != "moved":
                self._progress.append(Progress(number, cached, None if finished is None else finished.reason))
            if finished is not None:
                self._handing.discard(number)
                del self._numbers[serial]
                self._outputs.pop(number, None)
