"""The executor's core: events in, instructions out; no I/O, no clock, no torch.

Plans become steps, which go through one queue in the order of their plans (`StepState`). A step is packed as soon as
the batch can take its plan, and handed to the computing thread as soon as the moves of blocks that it needs are made,
ahead of those that the thread has. When the tokens of the step before are not needed for either, the thread never waits
for the loop. When a step awaits masks, what was handed over after it is recalled: what that computes depends on which
rows are deferred.

A new scheduler finds the batch empty. Steps of the one before that the thread has are computed to their end, and
nobody is told.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.adapters import AdapterBook
from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.computing import CutSignal
from pageant.actors.executor.guided.guiding import RowTokens
from pageant.actors.executor.guided.keeping import Kept
from pageant.actors.executor.guided_draws import GuidedDraws
from pageant.actors.executor.instructions import (
    Fail,
    Fetch,
    ForgetAdapter,
    Instruction,
    Launch,
    MakeMove,
    Send,
    Trace,
)
from pageant.actors.executor.metering import Metering
from pageant.actors.executor.multi_step import MultiStep
from pageant.actors.executor.pace import UNKNOWN_SECONDS, HangWatch, Pace
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.steps import Step, StepState
from pageant.actors.executor.tiers.moving import Move, Moving
from pageant.actors.executor.tiers.stored_moves import StoredMoves
from pageant.actors.executor.tracing import StepTracing
from pageant.actors.executor.work import Launched
from pageant.protocol.guiding import GuidesLost, TokenMasks
from pageant.protocol.stepping import CutShort, StepPlan
from pageant.protocol.verification import MISSING

__all__ = ["ExecutorCore"]

RECEIVED, PACKED, LAUNCHED = StepState.RECEIVED, StepState.PACKED, StepState.LAUNCHED
AWAITING_MASKS, SAMPLED, ANSWERED = StepState.AWAITING_MASKS, StepState.SAMPLED, StepState.ANSWERED


class ExecutorCore:
    """The steps of one executor, and what they need. All of it belongs to the actor's loop, but `cut`.

    Args:
        step_patience: seconds that any step may take.
        mask_patience: seconds after which a deferred row fails whose mask has not come.
    """

    def __init__(
        self, batch: Batch, adapters: AdapterBook, *, step_patience: float, mask_patience: float
    ) -> None:
        self.batch = batch
        """All sequences, as of the last plan that was packed."""
        self.adapters = adapters
        """The adapters that sequences may have, and those that are to be forgotten."""
        self.steps: deque[Step] = deque()
        """Steps that are not answered, in the order of their plans. Their states never increase from left to right."""
        self.scheduler = 0
        """The incarnation of the scheduler whose batch this is."""
        self.epoch = 0
        """The executor's incarnation. Plans of another epoch are for memory that is gone."""
        self.cut = CutSignal()
        """How far plans are wanted. The computing thread reads it."""
        self.metering = Metering()
        """Counts of the steps that were answered."""
        self._launches_ahead = True
        """Whether the thread is given launches while it has some: not where another waits for tokens."""
        self._num_launches = 0
        """How many launches were handed over; those that were recalled count again."""
        self._with_thread: list[Step] = []
        """The step of each launch that was handed over and has not come back, recalled ones included."""
        self._move: Move | None = None
        """The move that is being made; the first of `_moving`."""
        self._fetching: Step | None = None
        """The step whose tokens are waited for; the first that is SAMPLED."""
        self._out: list[Instruction] = []
        """Instructions that were not taken yet, in order."""
        self._moving = Moving()
        """Moves of blocks that are to be made."""
        self.stored_moves = StoredMoves()
        self._multi_step = MultiStep(batch, self.cut)
        """How plans are packed, and what of them was not computed."""
        self._guided = GuidedDraws(batch, self._out, mask_patience)
        """Guided rows that wait for masks."""
        self._tracing = StepTracing()
        """Rows whose requests are traced."""
        self._pace = Pace(step_patience)
        """How long steps take."""
        self._hang_watch = HangWatch()
        """The step that has been with the thread longest."""

    def start(self, epoch: int, num_groups: int, *, launches_ahead: bool) -> None:
        """Begin a life, before the first event.

        Args:
            num_groups: of layers, each with blocks of its own.
            launches_ahead: whether the computing thread is given launches while it has some.
        """
        self.epoch = self._guided.epoch = epoch
        self._launches_ahead = launches_ahead
        self.batch.group(num_groups)

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done now, in order."""
        taken = self._out[:]
        self._out.clear()
        return taken

    @property
    def at_hand(self) -> list[Step]:
        """The steps that were packed, and are not answered."""
        return [step for step in self.steps if step.state is not RECEIVED]

    @property
    def has_foreign_steps(self) -> bool:
        """Tell whether steps of former schedulers are not over."""
        return any(step.incarnation != self.scheduler for step in chain(self.steps, self._with_thread))

    def expected_seconds(self, tokens: int) -> float | None:
        """Return how long a step of so many tokens takes, as far as is known."""
        return self._pace.expected(tokens)

    # Plans.

    def plan(self, plan: StepPlan, scheduler: str, incarnation: int, now: float) -> None:
        """Take in a plan of a scheduler.

        Raises:
            PlanMismatch: it does not follow the last one.
        """
        if incarnation < self.scheduler:
            return  # its sender is known to be gone
        self.scheduler_up(incarnation)
        self._multi_step.receive(plan)
        if plan.epoch == self.epoch:
            self.steps.append(Step(plan, scheduler, incarnation, now))
            self._pack(now)

    def scheduler_up(self, incarnation: int) -> None:
        """Start over with a scheduler of a later incarnation: the batch is empty."""
        if incarnation <= self.scheduler:
            return
        self.scheduler = incarnation
        self.stored_moves.computed_step = 0
        self.batch.clear()
        while self.steps and self.steps[-1].state is RECEIVED:
            self.steps.pop()
        self._tracing.clear()
        self._multi_step.clear(incarnation)

    def cut_short(self, message: CutShort, incarnation: int) -> None:
        """Have plans end after the step at hand: somebody waits for what comes after them."""
        if message.epoch == self.epoch and incarnation == self.scheduler:
            self._multi_step.cut(message.number)

    def _pack(self, now: float) -> None:
        """Take plans into the batch, ahead of the steps at hand unless their tokens are needed for that."""
        while (step := self._first(RECEIVED)) is not None:
            if step is not self.steps[0] and self.batch.needs_tokens:
                break
            self._multi_step.pack(step)
            step.traces = self._tracing.apply(step.plan)
            step.moves_needed = self._moving.add(step.plan.moves, step.incarnation)
            step.become(PACKED)
            self._guided.packed(now)
        self._advance()

    def _first(self, state: StepState) -> Step | None:
        for step in self.steps:
            if step.state is state:
                return step
        return None

    # Moves and launches.

    def _advance(self) -> None:
        """Order what can be done now: the next move, and the next launches."""
        self._order_move()
        while (step := self._next_launch) is not None:
            if step.incarnation == self.scheduler:
                self._launch(step)
            else:
                self._leave(step)
                self._order_move()  # which may have waited for this step to end

    def _order_move(self) -> None:
        if self._move is None and (move := self._next_move) is not None:
            self._move = move
            self._out.append(MakeMove(move))

    @property
    def _next_move(self) -> Move | None:
        """The next move, if it can be made. While a dead scheduler's step computes, nobody knows what it writes to."""
        first = self._moving.first
        if first is None:
            return None
        move, incarnation = first
        computing = chain(self._with_thread, (step for step in self.steps if step.state > PACKED))
        foreign = any(step.incarnation != incarnation for step in computing)
        return None if foreign else move

    def moved(self, seconds: float) -> None:
        """Take note of a move that was made."""
        self._move = None
        self._moving.made(seconds)
        self._advance()

    @property
    def _next_launch(self) -> Step | None:
        """The step that can be handed over, if there is one."""
        for step in self.steps:
            if step.state is AWAITING_MASKS or (step.state is LAUNCHED and not self._launches_ahead):
                return None
            if step.state is PACKED:
                return step if self._moving.allows(step.moves_needed) else None
        return None

    def _launch(self, step: Step) -> None:
        inputs = step.inputs
        step.void = self.batch.guiding.void_places(inputs.rows, inputs.sampling.position, inputs.blind)
        step.become(LAUNCHED)
        self._num_launches += 1
        self._with_thread.append(step)
        self._out.append(Launch(step, step.work(self._num_launches)))

    def launched(self, step: Step, outcome: Launched | None, now: float) -> None:
        """Take in what came of a launch: tokens, or a step that awaits masks. None is a launch that was recalled."""
        self._with_thread.remove(step)
        if outcome is None:
            self._order_move()  # which may have waited for this launch to come back
            return
        step.launched, step.computed = outcome, outcome.computed
        if outcome.tokens is not None:
            self._sampled(step, outcome.tokens, now)
            return
        step.become(AWAITING_MASKS)
        for later in self.steps:
            if later.state is LAUNCHED:
                later.become(PACKED)
        self._guided.await_masks(step, self._num_launches, now)

    def sampled(self, step: Step, tokens: StepTokens, now: float) -> None:
        """Take in the draw of a step that awaited masks. Rows whose masks are missing are deferred."""
        step.computed = now if tokens.ready else None
        step.missing = tuple(tokens.missing.tolist())
        self._guided.defer(step, tokens.late, now, is_wanted=step.incarnation == self.scheduler)
        self._sampled(step, tokens, now)

    # Tokens.

    def _sampled(self, step: Step, tokens: StepTokens, now: float) -> None:
        step.tokens = tokens
        step.become(SAMPLED)
        self._advance()
        if tokens.ready and step is self.steps[0]:
            self._answer(step, tokens.token_ids(), now)
        else:
            self._fetch()

    def _fetch(self) -> None:
        """Order the tokens of the first step, if they are drawn."""
        first = self.steps[0] if self.steps else None
        if self._fetching is None and first is not None and first.state is SAMPLED:
            self._fetching = first
            self._out.append(Fetch(first, first.tokens))

    def fetched(self, step: Step, token_ids: npt.NDArray[np.int64], now: float) -> None:
        """Take in the tokens of a step, int64 [D] for its drawing rows, which were on their way from the device.

        Mutates them: those that mean nothing become MISSING.
        """
        self._fetching = None
        self._answer(step, token_ids, now)

    def _answer(self, step: Step, token_ids: npt.NDArray[np.int64], now: float) -> None:
        """Take a step's tokens into the batch, and tell its scheduler."""
        self._leave(step)
        self._fetch()
        if step.incarnation == self.scheduler:
            pooled = step.inputs.pooled
            if step.missing or step.void or pooled is not None:
                token_ids[[*step.missing, *step.void, *(() if pooled is None else pooled.places)]] = MISSING
            drawn = self._take_tokens(step, token_ids)
            self._send_result(step, token_ids, now)  # first: a grammar that lives here may take its time now
            self.metering.log.add(step, drawn, len(token_ids), step.computed or now)
            self._guided.tell(drawn)
        self._guided.answered(step, self.scheduler)
        self._forget_adapters()
        self._pack(now)

    def _leave(self, step: Step) -> None:
        step.become(ANSWERED)
        self.steps.remove(step)
        self._moving.ended()
        if step.incarnation == self.scheduler:
            self.stored_moves.computed_step = step.plan.exchange

    def _take_tokens(self, step: Step, token_ids: npt.NDArray[np.int64]) -> RowTokens | None:
        """Take in what a step drew. Returns the tokens that count, for a grammar."""
        if not step.may_stop_short:
            return self.batch.take_tokens(step.inputs, token_ids, step.void)
        self._multi_step.take_tokens(step, token_ids)
        return None

    def _send_result(self, step: Step, token_ids: npt.NDArray[np.int64], now: float) -> None:
        began, ended, num_steps = step.launched.began, step.computed or now, step.launched.num_steps
        seconds = ended - began
        self.metering.stepped(step.plan, began, ended, num_steps)
        if step.traces:
            self._out.append(Trace(step, began, ended))
        if num_steps:
            self._moving.stepped(step.num_tokens, seconds / num_steps, always=self.stored_moves.any_came)
            self._pace.took(step.num_tokens, seconds / num_steps)
        if (report := self._moving.take_report(self.epoch)) is not None:
            self._out.append(Send("blocks", report))
        self._out.append(Send(step.scheduler, step.result(token_ids, seconds)))

    def unload_adapter(self, key: str) -> None:
        """Take an adapter away from all sequences. It is forgotten when no step at hand has it."""
        self.adapters.remove(key, self.at_hand)
        self._forget_adapters()

    def _forget_adapters(self) -> None:
        """Have the adapters forgotten that no step has any more."""
        if self.adapters.some_leave:
            for key in self.adapters.take_forgotten(self.at_hand):
                self._out.append(ForgetAdapter(key))

    # Masks.

    def grammar_up(self, now: float) -> None:
        """Tell a new grammar of all that it is to follow."""
        self._guided.grammar_up(now)

    def grammar_down(self, reason: str, *, final: bool, now: float) -> None:
        """Have rows wait for the next grammar; if there will be none, fail them."""
        self._guided.grammar_down(reason, final=final, now=now)

    def masks(self, message: TokenMasks, now: float) -> None:
        """Draw what these masks make possible."""
        if message.epoch == self.epoch:
            self._guided.take_masks(message, now)

    def guides_lost(self, message: GuidesLost) -> None:
        """Tell the grammar again of rows of which it missed something."""
        if message.epoch == self.epoch:
            self._guided.guides_lost(message.guides.tolist())

    def late_sampled(self, kept: Kept[Step], tokens: StepTokens, token_ids: npt.NDArray[np.int64]) -> None:
        """Take in the tokens of deferred rows, int64 [D] for the D rows that were kept."""
        self._guided.late_sampled(kept, tokens, token_ids, self.scheduler)

    # Time.

    def tick(self, now: float) -> None:
        """Go on without masks that have been waited for long enough."""
        self._guided.tick(now)

    def watch(self, now: float, *, preparing: bool = False) -> None:
        """Fail if a step has not returned for so long that nobody waits for it any more.

        Args:
            preparing: a kernel is compiled now, for the step that is computed.
        """
        late = (kept.step for kept in self._guided.drawing)
        computing = (step for step in self.steps if step.state > PACKED)
        step = next(chain(computing, late), None)
        seconds = self._hang_watch.look(step, now, preparing=preparing)
        if step is None:
            return
        patience = step.plan.num_steps * self._pace.patience(step.num_tokens)
        if seconds > (UNKNOWN_SECONDS if self._hang_watch.prepares else patience):
            self._out.append(Fail(self._hang_watch.hung(step.num_tokens, seconds)))

    def check_integrity(self) -> None:
        """Assert what must hold between two events."""
        states = [step.state for step in self.steps]
        assert states == sorted(states, reverse=True), f"the queue is out of order: {states}"
        assert ANSWERED not in states, "an answered step has left the queue"
        assert states.count(AWAITING_MASKS) <= 1, "one step awaits masks at a time"
        assert not {LAUNCHED, AWAITING_MASKS} <= {*states}, "nothing is launched while a step awaits masks"
        with_thread = states.count(LAUNCHED) + states.count(AWAITING_MASKS)
        assert self._launches_ahead or with_thread <= 1, "launches go one at a time"
        assert self._fetching is None or self._fetching is self.steps[0], "the first step's tokens come first"
        assert not self._out, "instructions were not taken"
