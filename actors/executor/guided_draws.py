"""Draws of guided rows: their times, and what the grammar is told. A part of the executor's core: no I/O, no clock.

A step whose masks are late waits for them while that is worth it (`keeping.mask_deadline`), and is drawn then. Rows
whose masks are still missing are deferred: their logits are kept, and they are drawn when their masks come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.guided.guiding import RowTokens
from pageant.actors.executor.guided.keeping import Kept, KeptDraws, mask_deadline
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.instructions import Instruction, Sample, SampleLate, Send, Wake
from pageant.actors.executor.runners.model_runner import StepTokens
from pageant.actors.executor.steps import Step, StepState
from pageant.protocol.guiding import TokenMasks

__all__ = ["GRAMMAR", "GuidedDraws"]

GRAMMAR = "grammar"
MASKS_POLL_SECONDS = 0.1  # between two looks at deferred rows


class GuidedDraws:
    """Follows the grammar actor, the step that awaits masks, and the rows that were deferred.

    Args:
        out: where instructions go.
        mask_patience: seconds after which a deferred row fails whose mask has not come.
    """

    def __init__(self, batch: Batch, out: list[Instruction], mask_patience: float) -> None:
        self._batch, self._guiding = batch, batch.guiding
        self._out = out
        self.epoch = 0
        """The executor's incarnation, in every message to the grammar and from it."""
        self._up_since: float | None = None
        """When the grammar came up; None while it is down."""
        self._lost: str | None = None
        """Why there will never be a grammar again; then all guided rows fail."""
        self._awaiting: tuple[Step, int] | None = None
        """The step that awaits masks, and the number of the last launch; None once its draw was ordered."""
        self._deferred: KeptDraws[Step] = KeptDraws(self._guiding, mask_patience)
        """Rows whose masks have not come, and that nobody draws yet."""
        self._poll_at: float | None = None
        """When deferred rows are looked at next; None while there are none."""
        self.drawing: list[Kept[Step]] = []
        """Deferred rows that are being drawn, in order."""
        self._early: list[tuple[Kept[Step], StepTokens, npt.NDArray[np.int64]]] = []
        """Deferred rows that are drawn, and whose step is not answered yet."""

    # The grammar.

    def grammar_up(self, now: float) -> None:
        """Tell a new grammar of all that it is to follow."""
        self._up_since, self._lost = now, None
        self._reopen(None)

    def grammar_down(self, reason: str, *, final: bool, now: float) -> None:
        """Have guided rows wait for the next grammar, or fail if there will be none."""
        self._up_since = None
        if final:
            self._lost = f"the grammar actor is down and will not be restarted: {reason}"
            self._fail_all(self._lost, now)

    def packed(self, now: float) -> None:
        """Tell the grammar what a plan brought."""
        if self._lost is not None and len(self._guiding):
            self._fail_all(self._lost, now)
        self.tell()

    def tell(self, drawn: RowTokens | None = None) -> None:
        """Tell the grammar what is new of the guided rows, if anything is."""
        changes = self._guiding.take_changes(self.epoch, drawn)
        if changes is not None:
            self._out.append(Send(GRAMMAR, changes))

    def _reopen(self, guides: Sequence[int] | None) -> None:
        """Tell the grammar of these guides again, or of all."""
        known = {row: self._batch.known_tokens(row) for row in self._guiding.rows}
        self._guiding.reopen(known, guides)
        self.tell()

    def guides_lost(self, guides: Sequence[int]) -> None:
        """Tell the grammar again of guides of which it missed something."""
        self._reopen(guides)

    def _fail_all(self, reason: str, now: float) -> None:
        for row in self._guiding.rows:
            self._guiding.fail(self._guiding.guide_of(row), reason)
        self._masks_changed(now)

    # Masks.

    def take_masks(self, message: TokenMasks, now: float) -> None:
        """Draw what these masks make possible."""
        self._guiding.take_masks(message)
        self._masks_changed(now)

    def _masks_changed(self, now: float) -> None:
        self._sample_late()
        self._sample_awaiting(now)

    def await_masks(self, step: Step, last_launch: int, now: float) -> None:
        """Wait for a step's masks while that is worth it, then order its draw."""
        self._awaiting = step, last_launch
        self._sample_awaiting(now)

    def _sample_awaiting(self, now: float) -> None:
        if self._awaiting is None:
            return
        step, last_launch = self._awaiting
        pending, launched = step.awaited, step.launched
        if len(pending.guided.late):
            deadline = mask_deadline(pending, launched.began, launched.reached_draw)
            if now < deadline:
                self._out.append(Wake(deadline))
                return
        self._awaiting = None
        self._out.append(Sample(step, pending, last_launch))

    def tick(self, now: float) -> None:
        """Draw what has waited long enough, and look at deferred rows when it is time."""
        self._sample_awaiting(now)
        if self._poll_at is not None and now >= self._poll_at:
            self._poll(now)

    # Deferred rows.

    def defer(self, step: Step, late: PendingSample | None, now: float, *, is_wanted: bool) -> None:
        """Keep the rows of a step that are to be drawn when their masks come.

        Args:
            late: those rows, if there are any.
            is_wanted: whether the step's scheduler lives.
        """
        if late is None:
            return
        there = self._batch.are_there(step.inputs)[late.places]
        if not there.all():  # memory was lost meanwhile, and nobody waits for rows that have other sequences
            late = late.part(np.flatnonzero(there))
        step.deferred = tuple(late.places.tolist())
        if len(late.places) and is_wanted:
            rows, positions = step.inputs.rows, step.inputs.sampling.position
            self._guiding.defer(rows[late.places], positions[late.places])
            self._deferred.keep(step, late, now)
            self._poll_later(now)
            self._masks_changed(now)  # perhaps they have just come

    def _poll_later(self, now: float) -> None:
        if self._poll_at is None:
            self._poll_at = now + MASKS_POLL_SECONDS
            self._out.append(Wake(self._poll_at))

    def _poll(self, now: float) -> None:
        """Tell the grammar again of rows whose masks do not come, and fail them in the end. While there is no grammar,
        rows wait for the next."""
        self._poll_at = None
        if self._up_since is not None:
            again = self._deferred.overdue(now, self._up_since)
            if again:
                self._reopen(again)
            self._masks_changed(now)
        if self._deferred:
            self._poll_later(now)

    def _sample_late(self) -> None:
        for kept in self._deferred.take_due():
            self.drawing.append(kept)
            self._out.append(SampleLate(kept))

    def late_sampled(
        self, kept: Kept[Step], tokens: StepTokens, token_ids: npt.NDArray[np.int64], scheduler: int
    ) -> None:
        """Take in the tokens of rows that were deferred, and tell their scheduler, unless it is dead. It hears of the
        deferral first: tokens that overtake their step's own, which may be on their way, are held back.

        token_ids: int64 [D], for the D rows that were kept.
        """
        self.drawing.remove(kept)
        if kept.step.state is StepState.ANSWERED:
            self._take_late(kept, tokens, token_ids, scheduler)
        else:
            self._early.append((kept, tokens, token_ids))

    def answered(self, step: Step, scheduler: int) -> None:
        """Tell of the tokens that were held back for this step."""
        if self._early:
            due, self._early = self._early, []
            for kept, tokens, token_ids in due:
                if kept.step is step:
                    self._take_late(kept, tokens, token_ids, scheduler)
                else:
                    self._early.append((kept, tokens, token_ids))

    def _take_late(
        self, kept: Kept[Step], tokens: StepTokens, token_ids: npt.NDArray[np.int64], scheduler: int
    ) -> None:
        step, guided = kept.step, kept.pending.guided
        if step.incarnation == scheduler:
            taken = self._batch.take_late(guided.rows, guided.positions, token_ids, kept.guides)
            self.tell(taken)
            self._out.append(Send(step.scheduler, step.late_tokens(guided.rows, token_ids, tokens)))
