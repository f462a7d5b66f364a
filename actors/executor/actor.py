"""The executor's shell: plans in, results out, the computing in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.adapters import AdapterBook, Adapting
from pageant.actors.executor.batch import Batch
from pageant.actors.executor.device_errors import is_device_error
from pageant.actors.executor.disk import DiskFile
from pageant.actors.executor.guiding import DrawnTokens
from pageant.actors.executor.keeping import SOON_SECONDS, Kept, KeptDraws, patience_by_late
from pageant.actors.executor.memory import available_bytes
from pageant.actors.executor.metering import Metering
from pageant.actors.executor.moving import Move, Moving
from pageant.actors.executor.multi_step import MultiStep
from pageant.actors.executor.options import ExecutorOptions, make_runner
from pageant.actors.executor.pace import Pace, StepHung
from pageant.actors.executor.processors import Processors
from pageant.actors.executor.steps import Step
from pageant.actors.executor.succeeding import Succeeding
from pageant.actors.executor.tracing import StepTracing, step_spans
from pageant.actors.executor.undrawn import Undrawn
from pageant.actors.runtime import receives
from pageant.protocol.guiding import GuidesLost, TokenMasks
from pageant.protocol.lifecycle import WEIGHT_VERSION
from pageant.protocol.roles import EXECUTOR
from pageant.protocol.statistics import ExecutorStatistics, GetExecutorStatistics
from pageant.protocol.stepping import MAX_MODEL_LEN, CutShort, ExecutorReady, StepPlan
from pageant.protocol.supervision import ActorDown, ActorUp, Facts, Progress
from pageant.protocol.verification import MISSING

if TYPE_CHECKING:
    from pageant.actors.executor.model_runner import ModelRunner

GRAMMAR = "grammar"
MASKS_POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0  # between two looks at whether steps return
PROGRESS_STEPS = 100  # messages about the loading of the weights, at most


class Executor(Adapting, Succeeding):
    """Computes the steps of one device."""

    role = EXECUTOR
    features = EXECUTOR.features
    heavy = True
    soon_seconds = SOON_SECONDS

    class Options(ExecutorOptions, frozen=True, kw_only=True):
        """See `ExecutorOptions`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._batch = Batch(
            options.max_num_seqs,
            options.max_model_len,
            options.block_size,
            options.eos_token_ids,
            Processors(options.logits_processors, options.device),
            tuple(options.adapters),
        )
        self._adapters = AdapterBook(self._batch, options.adapters)
        self._disk: DiskFile | None = None
        self._scheduler = 0  # the incarnation whose batch this is
        self._reported = 0
        self._plans: deque[Step] = deque()  # that came, and could not be packed yet
        self._packed: deque[Step] = deque()
        self._computing: deque[Step] = deque()  # that the device has, in order
        self._to_begin: deque[Step] = deque()  # of those, what its thread has not begun
        self._drawing_late: deque[Step] = deque()  # whose deferred rows are drawn now
        self._launched: deque[Step] = deque()  # of those in `_computing`, whose tokens are on their way
        self._pace = Pace(options.step_patience)
        self._launching = 0  # of those, which the thread that computes has still to do
        self._multi_step = MultiStep(self._batch)
        self._is_moving = False
        self._moving = Moving()
        self._unanswered = 0  # steps that were packed
        self._metering = Metering()
        self._masks_came = asyncio.Event()
        self._waiting = False  # whether a step that was computed waits for masks
        self._nobody_waits = asyncio.Event()
        self._kept: KeptDraws[Step] = KeptDraws(self._batch.guiding, options.mask_patience)
        self._grammar_since: float | None = None  # when it came up; None while it is down
        self._grammar_lost: str | None = None  # why there will be none
        self._tracing = StepTracing()
        if options.device != "cpu":
            self.offload_threads = 2  # one waits for tokens while the other launches the next step

    async def on_start(self) -> None:
        self._runner = await self.offload(self.open_runner)
        self._batch.group(len(self._runner.windows))
        await self._load_added()
        self.spawn(self._watch_steps())
        self.watch("scheduler")
        self.watch("blocks")
        self.watch(GRAMMAR)

    def loses_process(self, error: BaseException) -> bool:
        """Return whether the device failed: each call to it from this process would fail again."""
        return is_device_error(error)

    def facts(self) -> Facts:
        """Return how long a request may be, given the memory that was found, and which adapters there are."""
        return {
            MAX_MODEL_LEN: self._runner.max_model_len,
            WEIGHT_VERSION: self.options.weight_version,
            **self._adapters.facts(),
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
        )

    def _report(self, done: int, total: int) -> None:
        step = done * PROGRESS_STEPS // max(1, total)
        if step > self._reported:
            self._reported = step
            progress = Progress(name=self.name, what="loading weights", done=done, total=total, unit="bytes")
            self.tell_from_thread("supervisor", progress)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Introduces itself to the scheduler and to the block manager, whichever came up. A grammar is told of all that
        it is to follow."""
        if event.address == GRAMMAR:
            self._grammar_since, self._grammar_lost = self.clock.now(), None
            self._reopen()
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
                block_bytes=self._runner.host.block_bytes,
                host_bytes=self._host_bytes(),
                disk_bytes=0 if self._disk is None else self._disk.bytes_free,
                windows=self._runner.windows,
                multi_step=self.options.device == "cpu" and not self.options.logits_processors,
                weight_version=self.options.weight_version,
            ),
        )

    def _host_bytes(self) -> int:
        return available_bytes()

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """The next scheduler's first plan clears the batch; rows that wait for masks wait for the next grammar."""
        if event.address == GRAMMAR:
            self._grammar_since = None
            if event.final:
                self._grammar_lost = f"the grammar actor is down and will not be restarted: {event.reason}"
                self._fail_guides(self._grammar_lost)

    def _fail_guides(self, reason: str) -> None:
        """Nobody will say what these rows may draw."""
        for row in self._batch.guiding.rows:
            self._batch.guiding.fail(self._batch.guiding.guide_of(row), reason)
        self._masks_changed()

    @receives
    def compute(self, plan: StepPlan) -> None:
        """Takes in a plan; its step is computed after those before it, and answered with its tokens."""
        if self.sender_incarnation > self._scheduler:
            self._scheduler = self.sender_incarnation
            self._batch.clear()
            self._plans.clear()
            self._tracing.clear()
            self._multi_step.clear()
        self._multi_step.came(plan)
        if plan.epoch == self.incarnation:  # not for the memory of an earlier life
            self._plans.append(Step(plan, self.sender, self.sender_incarnation))
            self._pack()

    @receives
    def cut_short(self, message: CutShort) -> None:
        """Somebody waits for what comes after the plans up to this one."""
        if message.epoch == self.incarnation and self.sender_incarnation == self._scheduler:
            self._multi_step.cut(message.number)

    def _pack(self) -> None:
        """Packs the plans that came, ahead of the running step if its tokens are not needed for that."""
        while self._plans and not (self._unanswered and self._batch.needs_tokens):
            step = self._plans.popleft()
            self._multi_step.pack(step)
            step.traces = self._tracing.apply(step.plan)
            step.moves_needed = self._moving.add(step.plan.moves, step.incarnation)
            self._unanswered += 1
            self._packed.append(step)
            if self._grammar_lost is not None and len(self._batch.guiding):
                self._fail_guides(self._grammar_lost)
            self._tell_grammar()
        self._go_on()

    def _go_on(self) -> None:
        """Starts what can be done now: the next move, and the next steps."""
        if not self._is_moving and self._next_move is not None:
            self._is_moving = True
            self.spawn(self._move())
        while (step := self._next_step) is not None:
            self._packed.popleft()
            if step.incarnation != self._scheduler:
                self._unanswered -= 1
                self._moving.ended()
                continue  # its scheduler is dead
            self._computing.append(step)
            self._to_begin.append(step)
            self._launching += 1
            self.spawn(self._launch(step))

    @property
    def _next_move(self) -> Move | None:
        """What can be moved now. While a dead scheduler's step computes, nobody knows what it writes to."""
        first = self._moving.first
        if first is None or any(step.incarnation != first[1] for step in self._computing):
            return None
        return first[0]

    async def _move(self) -> None:
        """Makes the moves, one after another."""
        while (move := self._next_move) is not None:
            self._moving.made(await self.offload_beside("moves", self._timed_move, move))
            self._go_on()
        self._is_moving = False

    def _timed_move(self, move: Move) -> float:
        began = self.clock.now()
        self._runner.host.move(move)
        return self.clock.now() - began

    @property
    def _next_step(self) -> Step | None:
        """The step that can be given to the thread that computes, if what it needs is there.

        Where that thread does everything, it has the next one before it is done with this: it goes on without a
        word from here, unless this one turns out to wait for masks. Where another waits for tokens, launches are
        short, and go one at a time.
        """
        step = self._packed[0] if self._packed else None
        busy = self._launching and self.offload_threads > 1
        return step if step is not None and not busy and self._moving.allows(step.moves_needed) else None

    async def _watch_steps(self) -> None:
        """A step that never returns is a death like any other."""
        watched, since = None, 0.0
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self.options.step_patience / 2))
            step, now = next(chain(self._computing, self._drawing_late), None), self.clock.now()
            if step is not watched:
                watched, since = step, now
            elif step is not None and now - since > self._patience_with(step):
                seconds, tokens = now - since, len(step.inputs.positions)
                raise StepHung(f"a step of {tokens} tokens has not returned for {seconds:.1f} s")

    def _patience_with(self, step: Step) -> float:
        """Seconds after which nobody waits for a plan any more."""
        return step.plan.num_steps * self._pace.patience(len(step.inputs.positions))

    async def _launch(self, step: Step) -> None:
        """Computes a step after those before it."""
        while not await self.offload(self._compute, step):
            await self._nobody_waits.wait()
        if step.undrawn is not None:
            await self._draw_masked(step, step.undrawn)
            self._waiting = False
            self._nobody_waits.set()
        self._launching -= 1
        self._go_on()
        if step.drawn.ready and not self._launched:
            self._finish(step, step.drawn.token_ids())
        else:
            self._launched.append(step)
            if len(self._launched) == 1:
                self.spawn(self._wait())

    def _compute(self, step: Step) -> bool:
        """In its thread. Returns whether it could: not while a step before it waits for masks, or is to be tried again
        since it had to wait for another's."""
        if self._waiting or self._to_begin[0] is not step:
            return False
        self._to_begin.popleft()
        step.began = self.clock.now()
        self._multi_step.begin(step.plan)
        if step.may_stop_short:
            self._multi_step.compute(step, self._runner, lambda: step.incarnation == self._scheduler)
            step.computed = self.clock.now() if step.drawn.ready else None
            return True
        inputs = step.inputs
        step.void = self._batch.guiding.void_places(inputs.rows, inputs.sampling.position, inputs.blind)
        if step.void and step.inputs.guided is not None:
            step.inputs = replace(step.inputs, guided=step.inputs.guided.without(step.void))
        outcome = self._runner.launch(step.inputs)
        if isinstance(outcome, Undrawn):
            step.launched = self.clock.now() - outcome.waited
            patience = min(self.soon_seconds, self._patience_left(step, outcome))
            if outcome.guided.come_until(step.launched + patience, self.clock):
                outcome = self._runner.draw(outcome)
        if isinstance(outcome, Undrawn):
            step.undrawn = outcome
            self._waiting = True
            self._nobody_waits.clear()
        else:
            step.drawn = outcome
            step.computed = self.clock.now() if outcome.ready else None
        return True

    def _patience_left(self, step: Step, undrawn: Undrawn) -> float:
        """For how long it is worth it to wait for masks."""
        drawing, took = len(step.inputs.rows), step.launched - step.began
        patience = float(patience_by_late(drawing, took)[len(undrawn.guided.late)])
        return step.launched + patience - self.clock.now()

    async def _draw_masked(self, step: Step, undrawn: Undrawn) -> None:
        """Waits for masks while that is worth it, and then draws the rows that have theirs. The others are deferred."""
        while len(undrawn.guided.late):
            left = self._patience_left(step, undrawn)
            if left <= 0:
                break
            self._masks_came.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._masks_came.wait(), left)
        step.drawn = await self.offload(self._runner.draw, undrawn)
        step.computed = self.clock.now() if step.drawn.ready else None
        step.undrawn = None
        step.missing = tuple(step.drawn.missing.tolist())
        if step.drawn.late is None:
            return
        undrawn = step.drawn.late
        there = self._batch.are_there(step.inputs)[undrawn.places]
        if (
            not there.all()
        ):  # memory was lost meanwhile, and rows have other sequences: nobody waits for theirs
            undrawn = undrawn.part(np.flatnonzero(there))
        late = undrawn.places
        step.deferred = tuple(late.tolist())
        if len(late) and step.incarnation == self._scheduler:
            self._batch.guiding.defer(step.inputs.rows[late], step.inputs.sampling.position[late])
            self._kept.keep(step, undrawn, self.clock.now())
            if len(self._kept) == 1:
                self.spawn(self._watch_masks())
            self._masks_changed()  # perhaps they have just come

    async def _wait(self) -> None:
        """Waits for the tokens of launched steps, while the next one is launched."""
        while self._launched:
            step = self._launched[0]
            token_ids = await self.offload(step.drawn.token_ids)
            self._launched.popleft()
            self._finish(step, token_ids)

    def _finish(self, step: Step, token_ids: npt.NDArray[np.int64]) -> None:
        self._unanswered -= 1
        self._moving.ended()
        self._computing.remove(step)
        if step.incarnation == self._scheduler:
            if step.missing or step.void:
                token_ids[[*step.missing, *step.void]] = MISSING
            drawn = self._take_tokens(step, token_ids)
            self._answer(step, token_ids)  # first: a grammar that lives here may take its time now
            self._tell_grammar(drawn)
        self._forget_adapters()
        self._pack()

    @property
    def _at_hand(self) -> list[Step]:
        """The steps that were packed, and are not answered."""
        return [*self._packed, *self._computing]

    def _take_tokens(self, step: Step, token_ids: npt.NDArray[np.int64]) -> DrawnTokens | None:
        """Takes in what a step drew, or several. Returns those that count, for a grammar."""
        if not step.may_stop_short:
            return self._batch.take_tokens(step.inputs, token_ids, step.void)
        self._multi_step.take_tokens(step, token_ids)
        return None

    def _answer(self, step: Step, token_ids: npt.NDArray[np.int64]) -> None:
        ended = step.computed or self.clock.now()
        seconds = ended - step.began
        self._metering.stepped(step.plan, step.began, ended, step.num_steps)
        if step.traces:
            self.tracer.tell(*step_spans(self.tracer, step.plan, step.traces, step.began, ended))
        if step.num_steps:
            self._moving.stepped(len(step.inputs.positions), seconds / step.num_steps)
            self._pace.took(len(step.inputs.positions), seconds / step.num_steps)
        if (report := self._moving.take_report(self.incarnation)) is not None:
            self.tell("blocks", report)
        self.tell(step.scheduler, step.result(token_ids, seconds))

    @receives(concurrent=True)
    async def statistics(self, request: GetExecutorStatistics) -> ExecutorStatistics:
        """The device, and its steps so far."""
        runner, options = self._runner, self.options
        return self._metering.statistics(
            device=options.device,
            dtype=runner.dtype,
            kernels=runner.kernels,
            max_model_len=runner.max_model_len,
            num_blocks=runner.num_blocks,
            block_size=options.block_size,
            windows=runner.windows,
            memory_bytes=runner.memory_bytes,
            **runner.preparations,
        )

    # What a grammar guides.

    def _tell_grammar(self, drawn: DrawnTokens | None = None) -> None:
        """Tells the grammar what is new of the guided rows, if anything is."""
        news = self._batch.guiding.take_news(self.incarnation, drawn)
        if news is not None:
            self.tell(GRAMMAR, news)

    @receives
    def masks(self, message: TokenMasks) -> None:
        """What may be drawn next."""
        if message.epoch == self.incarnation:
            self._batch.guiding.take_masks(message)
            self._masks_changed()

    def _masks_changed(self) -> None:
        self._masks_came.set()
        for kept in self._kept.take_due():
            self.spawn(self._draw_late(kept))

    @receives
    def guides_lost(self, message: GuidesLost) -> None:
        """The grammar missed something of these rows."""
        if message.epoch == self.incarnation:
            self._reopen(message.guides.tolist())

    def _reopen(self, guides: list[int] | None = None) -> None:
        guiding = self._batch.guiding
        guiding.reopen({row: self._batch.known_tokens(row) for row in guiding.rows}, guides)
        self._tell_grammar()

    async def _draw_late(self, kept: Kept[Step]) -> None:
        """Draws rows that were deferred."""
        self._drawing_late.append(kept.step)
        drawn = await self.offload(self._runner.draw, kept.undrawn)
        token_ids = await self.offload(drawn.token_ids)
        self._drawing_late.remove(kept.step)
        step, guided = kept.step, kept.undrawn.guided
        if step.incarnation != self._scheduler:
            return
        taken = self._batch.take_late(guided.rows, guided.positions, token_ids, kept.guides)
        self._tell_grammar(taken)
        self.tell(step.scheduler, step.late_tokens(guided.rows, token_ids, drawn))

    async def _watch_masks(self) -> None:
        """Asks again for masks that do not come, and gives up in the end. While there is no grammar, rows wait for the
        next one."""
        while self._kept:
            await asyncio.sleep(MASKS_POLL_SECONDS)
            if self._grammar_since is not None:
                again = self._kept.overdue(self.clock.now(), self._grammar_since)
                if again:
                    self._reopen(again)
                self._masks_changed()
