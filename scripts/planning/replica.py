"""One replica in model time: the real cores of scheduler and block manager, and a device that takes its time."""

from __future__ import annotations

from collections import deque
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
from pageant.protocol.arrays import int32
from pageant.protocol.following import BlockEvents
from pageant.protocol.message import Message
from pageant.protocol.outputs import TokenBatch
from pageant.protocol.routing import Load
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Submit
from pageant.protocol.stepping import ExecutorReady, StepPlan, StepResult
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.replay.costs import StepCosts, StepSize

EPOCH = 1
END_TOKEN = 0
TOKEN = 1
"""The token of all outputs, which tell nothing here; `END_TOKEN` is the last."""


@dataclass(frozen=True)
class ReplicaShape:
    """Sizes and settings of a replica.

    Attributes:
        num_blocks, block_size: of its KV memory, and in tokens.
        windows: the attention window of each layer group.
        policy: the scheduler's.
        max_num_seqs, max_num_batched_tokens, max_model_len, async_scheduling, short_step_seconds: see
            `Scheduler.Options`.
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


class Progress(NamedTuple):
    """New output of a request."""

    number: int
    """The request's."""
    num_tokens: int
    """Its new tokens."""
    cached: int | None
    """Tokens of the prompt that were found cached, where the request was admitted by this step."""
    ended: str | None
    """The reason of its end; None while it goes on."""


class PlannedReplica:
    """A replica. Times (`now`) are seconds of model time.

    Args:
        costs: of a step, by its size.
        speed: how many times as fast as `costs` says the device is.
    """

    def __init__(self, name: str, shape: ReplicaShape, costs: StepCosts, speed: float = 1.0) -> None:
        limits = Limits(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_len,
            end_tokens=frozenset((END_TOKEN,)),
            async_scheduling=shape.async_scheduling,
            short_step_seconds=shape.short_step_seconds,
        )
        self.name = name
        self.busy_seconds = 0.0
        # The largest share of the memory that requests held.
        self.memory = 0.0
        self._shape, self._costs, self._speed = shape, costs, speed
        self._luck = costs.luck()
        self._core = SchedulerCore(make_policy(shape.policy), limits)
        pool = BlockPool(shape.num_blocks)
        self._blocks = Allocation(pool, shape.block_size, windows=shape.windows)
        self._follower = Follower(tokens=False)
        self._meter = LoadMeter(self._core)
        # Plans that the device has not computed, in order; the first is under way if `next_at` is set.
        self._plans: deque[StepPlan] = deque()
        # Seconds at which the plan under way is over; None while the device rests.
        self.next_at: float | None = None
        self._step_seconds = 0.0
        # Tokens that each row still has to say.
        self._left: dict[int, int] = {}
        # The numbers of open requests by the scheduler's serial, and the tokens of their outputs by number.
        self._numbers: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._progress: list[Progress] = []
        ready = ExecutorReady(
            epoch=EPOCH,
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            windows=shape.windows,
            max_num_seqs=shape.max_num_seqs,
            max_model_len=shape.max_model_len,
            device="none",
            dtype="none",
        )
        self._meter.executor_ready(ready)
        self._core.executor_ready(ready)
        self._core.pool_ready(EPOCH, 1)
        self._blocks.follow(self._follower.note)
        self._pump(0.0)

    @property
    def preemptions(self) -> int:
        """Return how often requests gave up their memory for others."""
        return self._core.counters.preemptions

    def submit(self, number: int, request: PlannedRequest, ticket: int, expected: int, now: float) -> None:
        """Take a request that arrives at `now`, with the router's ticket and the tokens that it expects to compute."""
        self._outputs[number] = request.output_tokens
        self._meter.submitted(ticket)
        self._core.submit(
            Submit(
                request_id=str(number),
                frontend="frontend",
                prompt_token_ids=request.prompt,
                params=SamplingParams(seed=number, max_tokens=request.most_tokens, detokenize=False),
                ticket=ticket,
                expected_tokens=expected,
            ),
            now,
        )
        self._pump(now)

    def step(self, now: float) -> None:
        """End the step that is over at `now`, and begin the next."""
        plan = self._plans.popleft()
        rows = plan.rows[plan.draws]
        tokens = int32([self._say(row) for row in rows.tolist()])
        seconds = self._step_seconds
        self.busy_seconds += seconds
        self.next_at = None
        self._begin(now)
        result = StepResult(number=plan.number, epoch=EPOCH, rows=rows, token_ids=tokens, seconds=seconds)
        self._core.stepped(result, now)
        self._meter.stepped(self._core.step_tokens, seconds)
        self._pump(now)

    def take_progress(self) -> list[Progress]:
        """Return the output since the last call."""
        progress, self._progress = self._progress, []
        return progress

    def take_events(self) -> Iterator[BlockEvents]:
        """Return the blocks that were stored and removed since the last call."""
        if self._follower.has_events:
            yield from self._follower.take(EPOCH, self._shape.block_size, self._blocks.stored)

    def take_load(self) -> Load | None:
        """Return what the scheduler has to do; None where that has not changed."""
        return self._meter.take()

    def _say(self, row: int) -> int:
        self._left[row] -= 1
        return TOKEN if self._left[row] > 0 else END_TOKEN

    def _begin(self, now: float) -> None:
        """Let the device compute the first plan, if there is one and it rests."""
        if self.next_at is None and self._plans:
            plan = self._plans[0]
            for one in plan.new:
                assert one.params.seed is not None, "its number"
                said = len(one.token_ids) - one.num_prompt_tokens
                self._left[one.row] = self._outputs[one.params.seed] - said
            self._step_seconds = self._costs.expected(StepSize.of(plan)) * next(self._luck) / self._speed
            self.next_at = now + self._step_seconds

    def _pump(self, now: float) -> None:
        """Carry messages between the cores until both are silent."""
        while outbox := self._core.take_outbox():
            for address, message in outbox:
                self._deliver(address, message, now)
        self._begin(now)

    def _deliver(self, address: str, message: Message, now: float) -> None:
        if address == BLOCKS:
            assert isinstance(message, Assign)
            assigned = self._blocks.assign(message)
            self._meter.assigned(assigned)
            if assigned.num_blocks:
                self.memory = max(self.memory, 1 - assigned.blocks_free / assigned.num_blocks)
            self._core.assigned(assigned, now)
        elif isinstance(message, StepPlan):
            self._plans.append(message)
        elif isinstance(message, TokenBatch):
            self._take(message)
            self._core.acknowledged(message.number)

    def _take(self, batch: TokenBatch) -> None:
        for opened in batch.opened:
            self._numbers[opened.serial] = int(opened.request_id)
        counts = batch.counts.tolist()
        for index, serial in enumerate(batch.serials.tolist()):
            facts, finished = batch.facts.get(index), batch.finished.get(index)
            number = self._numbers[serial]
            cached = None if facts is None else facts.num_cached_tokens
            ended = None if finished is None else finished.reason
            self._progress.append(Progress(number, counts[index], cached, ended))
            if finished is not None:
                del self._numbers[serial], self._outputs[number]
