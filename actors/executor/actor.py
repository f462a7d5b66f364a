"""The executor's shell: messages and threads around its core."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pageant.actors.executor.adapters import AdapterBook, Adapting
from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.batch.processors import Processors
from pageant.actors.executor.computing import ComputingThread
from pageant.actors.executor.core import ExecutorCore
from pageant.actors.executor.device_errors import is_device_error
from pageant.actors.executor.groups.leading import Leading
from pageant.actors.executor.groups.leading_thread import LeadingThread
from pageant.actors.executor.guided.keeping import SOON_SECONDS
from pageant.actors.executor.guided_draws import GRAMMAR
from pageant.actors.executor.instructions import (
    Fail,
    Fetch,
    ForgetAdapter,
    Instruction,
    Launch,
    MakeMove,
    Sample,
    SampleLate,
    Send,
    Trace,
    Wake,
)
from pageant.actors.executor.options import ExecutorOptions, make_runner
from pageant.actors.executor.runners.memory import available_bytes
from pageant.actors.executor.storing import Storing
from pageant.actors.executor.tiers.moving import Move
from pageant.actors.executor.tracing import step_spans
from pageant.actors.executor.work import Launched, Work
from pageant.actors.runtime import receives
from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.disk_file import DiskFile
from pageant.protocol.guiding import GuidesLost, TokenMasks
from pageant.protocol.lifecycle import WEIGHT_VERSION
from pageant.protocol.roles import EXECUTOR, SCHEDULER
from pageant.protocol.statistics import ExecutorStatistics, GetExecutorStatistics
from pageant.protocol.stepping import MAX_MODEL_LEN, CutShort, ExecutorReady, StepPlan
from pageant.protocol.supervision import ActorDown, ActorUp, Facts, Progress

if TYPE_CHECKING:
    from pageant.actors.executor.runners.model_runner import ModelRunner

LOOK_SECONDS = 1.0  # between two looks at whether steps return
PROGRESS_STEPS = 100  # messages about the loading of the weights, at most


class Executor(Storing, Leading, Adapting):
    """Computes the steps of one device, or leads a group of executors that compute them together."""

    role = EXECUTOR
    features = EXECUTOR.features
    heavy = True
    follower = "pageant.actors.executor.groups.rank:Rank"
    soon_seconds = SOON_SECONDS

    class Options(ExecutorOptions, frozen=True, kw_only=True):
        """See `ExecutorOptions`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        batch = Batch(
            options.max_num_seqs,
            options.max_model_len,
            options.block_size,
            options.eos_token_ids,
            Processors(options.logits_processors, options.torch_device),
            tuple(options.adapters),
            proposes=options.speculation is not None and options.speculation.on_device,
        )
        self.core = ExecutorCore(
            batch,
            AdapterBook(batch, options.adapters),
            step_patience=options.step_patience,
            mask_patience=options.mask_patience,
        )
        self._disk: DiskFile | None = None
        self._joined = {}
        self._reported = 0
        self._stored_turns = {}
        if options.torch_device != "cpu":
            self.offload_threads = 2  # one waits for tokens while the other launches the next step

    async def on_start(self) -> None:
        leads = self.options.num_members > 1
        self._runner = await (self._lead() if leads else self.offload(self.open_runner))
        self._thread = self.open_thread()
        self.core.start(self.incarnation, len(self._runner.windows), launches_ahead=self.offload_threads == 1)
        if self._runner.num_states:
            self.core.batch.follow_states()
        await self._load_added()
        self.spawn(self._watch_steps())
        self.watch("scheduler")
        self.watch("blocks")
        self.watch(GRAMMAR)

    def _present_runner(self) -> ModelRunner:
        """See `Succeeding`."""
        return self._runner

    def open_thread(self) -> ComputingThread:
        """Return the computing thread of the runner."""
        thread = LeadingThread if self.followers else ComputingThread
        return thread(self._runner, self.core.cut, self.clock, self.soon_seconds)

    def loses_process(self, error: BaseException) -> bool:
        """Return whether the device failed: each call to it from this process would fail again."""
        return is_device_error(error)

    def facts(self) -> Facts:
        """Return how long a request may be, given the memory that was found, and which adapters there are."""
        return {
            MAX_MODEL_LEN: self._runner.max_model_len,
            WEIGHT_VERSION: self.options.weight_version,
            **self.core.adapters.facts(),
        }

    def open_runner(self) -> ModelRunner:
        """Load the model. Called once, in the executor's own thread; what it returns computes every step."""
        if self.options.disk_path is not None:
            self._disk = DiskFile(self.options.disk_path)
        return make_runner(
            self.options,
            clock=self.clock.now,
            progress=self._report,
            disk=self._disk,
            **self._take_inherited(),
            **self._joined,
        )

    def _report(self, done: int, total: int) -> None:
        """See `Loading`. The leader's progress speaks for its group."""
        super()._report(done, total)
        step = done * PROGRESS_STEPS // max(1, total)
        if step > self._reported:
            self._reported = step
            progress = Progress(name=self.name, what="loading weights", done=done, total=total, unit="bytes")
            self.tell_from_thread("supervisor", progress)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Introduces itself to the scheduler and to the block manager, whichever came up. A grammar is told of all that
        it is to follow."""
        if role_of(event.address) == SCHEDULER.name:
            self.core.scheduler_up(event.incarnation)
            self._perform()
        if event.address == GRAMMAR:
            self.core.grammar_up(self.clock.now())
            self._perform()
            return
        self.tell(
            event.address,
            ExecutorReady(
                epoch=self.incarnation,
                num_blocks=self._runner.num_blocks,
                block_size=self.options.block_size,
                max_num_seqs=self.options.max_num_seqs,
                max_model_len=self._runner.max_model_len,
                device=self.options.device,
                dtype=self._runner.dtype,
                block_bytes=max(self._runner.host.block_bytes, self.block_bytes_elsewhere),
                host_bytes=self._host_bytes(),
                disk_bytes=0 if self._disk is None else self._disk.bytes_free,
                windows=self._runner.windows,
                num_states=self._runner.num_states,
                multi_step=self._takes_multi_step,
                weight_version=self.options.weight_version,
                whole_prompts=self._runner.whole_prompts,
                stages=self.options.pipeline_parallel,
                stored=self.stored_layout,
            ),
        )

    @property
    def _takes_multi_step(self) -> bool:
        """Tell whether several steps are computed without a message in between."""
        is_alike = self.options.torch_device == "cpu" and not self.options.logits_processors
        return is_alike and self.options.pipeline_parallel == 1

    def _host_bytes(self) -> int:
        return available_bytes()

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """The next scheduler's first plan clears the batch; rows that wait for masks wait for the next grammar."""
        if event.address == GRAMMAR:
            self.core.grammar_down(event.reason, final=event.final, now=self.clock.now())
            self._perform()

    @receives
    def compute(self, plan: StepPlan) -> None:
        """Takes in a plan; its step is computed after those before it, and answered with its tokens."""
        self.core.plan(plan, self.sender, self.sender_incarnation, self.clock.now())
        self._perform()

    @receives
    def cut_short(self, message: CutShort) -> None:
        """Cut plans short: somebody waits for what comes after the plans up to this one."""
        self.core.cut_short(message, self.sender_incarnation)

    @receives
    def masks(self, message: TokenMasks) -> None:
        """Takes in what may be drawn next."""
        self.core.masks(message, self.clock.now())
        self._perform()

    @receives
    def guides_lost(self, message: GuidesLost) -> None:
        """Tells the grammar again of rows of which it missed something."""
        self.core.guides_lost(message)
        self._perform()

    # Adapters; see `Adapting`.

    @property
    def _adapters(self) -> AdapterBook:
        return self.core.adapters

    def _unload_adapter(self, key: str) -> None:
        self.core.unload_adapter(key)
        self._perform()

    # Instructions.

    def _perform(self) -> None:
        """Carry out the core's instructions, in order."""
        for instruction in self.core.take_instructions():
            self._carry_out(instruction)
        if self._stored_turns:
            self._give_stored_turns()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._order(instruction.work)
                self.spawn(self._launch(instruction))
            case Send():
                self.tell(instruction.address, instruction.message)
            case Fetch():
                self.spawn(self._fetch(instruction))
            case MakeMove():
                self.spawn(self._move(instruction.move))
            case Sample():
                self.spawn(self._sample(instruction))
            case SampleLate():
                self.spawn(self._sample_late(instruction))
            case Wake():
                self.spawn(self._wake(instruction.at))
            case Trace(step, began, ended):
                self.tracer.tell(*step_spans(self.tracer, step.plan, step.traces, began, ended))
            case ForgetAdapter():
                self._forget_adapter(instruction.key)
            case Fail():
                self._abort(str(instruction.error))
                raise instruction.error

    async def _launch(self, order: Launch) -> None:
        try:
            outcome = await self.offload(self._compute, order.work)
        except Exception as error:
            await self._outlive_cause(error)
            raise
        self.core.launched(order.step, outcome, self.clock.now())
        self._perform()

    def _compute(self, work: Work) -> Launched | None:
        """Compute steps, in the computing thread."""
        return self._thread.launch(work)

    async def _sample(self, order: Sample) -> None:
        drawn = await self.offload(self._thread.draw_awaiting, order.pending, order.recalled)
        self.core.sampled(order.step, drawn, self.clock.now())
        self._perform()

    async def _sample_late(self, order: SampleLate) -> None:
        drawn = await self.offload(self._runner.draw, order.kept.pending)
        token_ids = await self.offload(drawn.token_ids)
        self.core.late_sampled(order.kept, drawn, token_ids)
        self._perform()

    async def _fetch(self, order: Fetch) -> None:
        token_ids = await self.offload(order.tokens.token_ids)
        self.core.fetched(order.step, token_ids, self.clock.now())
        self._perform()

    async def _move(self, move: Move) -> None:
        moved = self.offload_beside("moves", self._timed_move, move)
        if self.followers:
            seconds, _ = await asyncio.gather(moved, self._move_elsewhere(move))
        else:
            seconds = await moved
        self.core.moved(seconds)
        self._perform()

    def _timed_move(self, move: Move) -> float:
        began = self.clock.now()
        self._runner.host.move(move)
        return self.clock.now() - began

    async def _wake(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.clock.now()))
        self.core.tick(max(at, self.clock.now()))  # a timer may be early by less than the clock can tell
        self._perform()

    async def _watch_steps(self) -> None:
        """A step that never returns is a death like any other."""
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self.options.step_patience / 2))
            self.core.watch(self.clock.now(), preparing=self._runner.is_preparing)
            self._perform()

    @receives(concurrent=True)
    async def statistics(self, request: GetExecutorStatistics) -> ExecutorStatistics:
        """The device, and its steps so far."""
        seconds = request.steps_seconds
        since = float("-inf") if seconds is None else self.clock.now() - seconds
        steps = self.core.metering.log.last(request.steps_max, since)
        return self.core.metering.statistics_of(self._runner, self.options, steps)
