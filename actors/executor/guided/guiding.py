"""The rows of the batch whose output a grammar guides: their masks, and the draws that wait for one.

A step's forward pass begins without masks, which come while it runs. Where one has not come when the step is to draw,
the other rows are drawn, and this row's logits are kept: it is deferred, alone, and drawn when its mask comes. Until
then it is not computed further: what a plan that was made ahead has of it is void. A row with drafts has a mask for
each place along them; where one is late, the drafts from there on are not verified.

A guide is a number that no other sequence of this executor gets: a count, times the size of the batch, plus the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.guided.masks import GuidedStep, MaskTable
from pageant.protocol.arrays import int32, int64
from pageant.protocol.guiding import GuideStep, OpenGuide, TokenMasks
from pageant.protocol.stepping import NewSequence

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class RowTokens(NamedTuple):
    """Tokens, their rows of the batch, and their positions."""

    rows: Int32
    positions: Int64
    token_ids: Int64


NO_TOKENS = RowTokens(int32(), int64(), int64())


@dataclass
class _Stall:
    """A row whose token at `position` was deferred, and whether it is there by now."""

    position: int
    known: bool = False


@dataclass
class _GuideChanges:
    """Changes of guides that the grammar is to be told with the next message."""

    opened: dict[int, OpenGuide] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    drafts: list[tuple[int, int, Int32]] = field(default_factory=list)  # guide, position, and what they are

    def __bool__(self) -> bool:
        return bool(self.opened or self.closed or self.drafts)


class Guiding:
    """All guided rows of a batch of `max_num_seqs` rows."""

    def __init__(self, max_num_seqs: int) -> None:
        self._size = max_num_seqs
        self._count = 0
        self._rows: dict[int, NewSequence] = {}
        self._guides = np.zeros(max_num_seqs, np.int64)  # by row; 0 is none
        self._stalled: dict[int, _Stall] = {}
        self._changes = _GuideChanges()
        self.table = MaskTable(max_num_seqs)

    def __len__(self) -> int:
        return len(self._rows)

    # Plans.

    def clear(self) -> None:
        """Forgets every row."""
        self.free(list(self._rows))

    def free(self, rows: Iterable[int]) -> None:
        """Forgets some rows."""
        if not self._rows:
            return
        for row in rows:
            if self._rows.pop(int(row), None) is not None:
                guide, self._guides[row] = int(self._guides[row]), 0
                self._stalled.pop(int(row), None)
                self.table.forget(int(row))
                if self._changes.opened.pop(guide, None) is None:
                    self._changes.closed.append(guide)

    def add(self, sequence: NewSequence) -> None:
        """Takes a new sequence, or a resumed one, in place of what was in its row."""
        self.free((sequence.row,))
        if sequence.params.structured_outputs is None:
            return
        self._count += 1
        self._rows[sequence.row] = sequence
        self._guides[sequence.row] = self._count * self._size + sequence.row
        self._open(sequence, sequence.token_ids)

    def _open(self, sequence: NewSequence, token_ids: Int32) -> None:
        params, num_prompt = sequence.params, sequence.num_prompt_tokens
        assert params.structured_outputs is not None, "the row is guided"
        guide = self.guide_of(sequence.row)
        self._changes.opened[guide] = OpenGuide(
            guide=guide,
            structured_outputs=params.structured_outputs,
            position=len(token_ids),
            token_ids=token_ids[num_prompt:].copy(),
            ignore_eos=params.ignore_eos,
        )

    def of_step(self, rows: Int32, positions: Int64, ahead: Int64) -> GuidedStep | None:
        """Return what guides these rows, which draw the tokens at these positions, after so many drafts each."""
        if not self._rows:
            return None
        places = self._guides[rows].nonzero()[0]
        if not len(places):
            return None
        return GuidedStep.of(
            places, rows[places].astype(np.int64), positions[places], ahead[places], self.table
        )

    def guess(self, rows: Int32, positions: Int64, counts: Int32, token_ids: Int32) -> None:
        """A step has these drafts: `counts[i]` of the tokens for each row, from `positions[i]` on."""
        if not self._rows:
            return
        parts = np.split(token_ids, np.cumsum(counts)[:-1])
        for row, position, part in zip(rows.tolist(), positions.tolist(), parts, strict=True):
            if row in self._rows and len(part):
                self._changes.drafts.append((self.guide_of(row), position, part))

    # What is deferred.

    def defer(self, rows: Int32, positions: Int64) -> None:
        """Defer these rows' tokens at these positions."""
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            self._stalled[row] = _Stall(position)

    def arrived(self, rows: Iterable[int]) -> None:
        """Deferred tokens are there."""
        for row in rows:
            if row in self._stalled:
                self._stalled[row].known = True

    def unknown_rows(self, rows: Int32) -> frozenset[int]:
        """Return those of some rows whose last token has been deferred, and has not come yet."""
        if not self._stalled:
            return frozenset()
        stalls = [(row, self._stalled.get(row)) for row in rows.tolist()]
        return frozenset(row for row, stall in stalls if stall is not None and not stall.known)

    def are_stalled(self, rows: Int32) -> bool:
        """Tell whether all of these rows have waited, or wait, for a token that was deferred."""
        return all(row in self._stalled for row in rows.tolist())

    def position_deferred(self, row: int) -> int | None:
        """Return the position of the token that a stalled row waits for, or has waited for."""
        stall = self._stalled.get(row)
        return None if stall is None else stall.position

    def void_places(
        self, rows: Int32, positions: Int64, blind: frozenset[int] = frozenset()
    ) -> tuple[int, ...]:
        """Return the places of a step's drawing rows for which the token before is missing, before it is computed.

        Args:
            blind: rows for which it was missing when the step was packed, and could not be done without.
        """
        if not self._stalled:
            return ()
        void = []
        for place, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            stall = self._stalled.get(row)
            if stall is None:
                continue
            if stall.known and position == stall.position + 1 and row not in blind:
                del self._stalled[row]
            else:
                void.append(place)
        return tuple(void)

    # Messages.

    def take_changes(self, epoch: int, drawn: RowTokens | None = None) -> GuideStep | None:
        """Return what the grammar is to know after some tokens were drawn, if anything."""
        if not (self._rows or self._changes):
            return None
        changes, self._changes = self._changes, _GuideChanges()
        rows, positions, token_ids = drawn if drawn is not None else NO_TOKENS
        guides = self._guides[rows]
        if not guides.all():
            guided = guides.nonzero()[0]
            guides, positions, token_ids = guides[guided], positions[guided], token_ids[guided]
        if not (len(guides) or changes):
            return None
        drawn_ids = token_ids.astype(np.int32)
        if not changes:  # as in most steps
            return GuideStep(epoch=epoch, guides=guides, positions=positions, token_ids=drawn_ids)
        return GuideStep(
            epoch=epoch,
            opened=tuple(changes.opened.values()),
            closed=int64(changes.closed),
            guides=guides,
            positions=positions,
            token_ids=drawn_ids,
            drafting=int64([guide for guide, _, _ in changes.drafts]),
            draft_positions=int64([position for _, position, _ in changes.drafts]),
            draft_counts=int32([len(part) for _, _, part in changes.drafts]),
            draft_ids=np.concatenate([part for _, _, part in changes.drafts]) if changes.drafts else int32(),
        )

    def take_masks(self, message: TokenMasks) -> None:
        """Masks of rows that are still there."""
        rows = message.guides % self._size
        slots = self.table.slots(rows, message.ahead)
        known = self._guides[rows] == message.guides
        if known.all():
            self.table.take(slots, message.positions, message.bits)
        else:
            self.table.take(slots[known], message.positions[known], message.bits[known])
        for guide, reason in message.failed.items():
            self.fail(guide, reason)

    def fail(self, guide: int, reason: str) -> None:
        """A sequence will have no more masks."""
        if self.is_open(guide):
            self.table.fail(guide % self._size, reason)

    def is_open(self, guide: int) -> bool:
        """Tell whether a guide's row is still its."""
        return bool(self._guides[guide % self._size] == guide)

    def guide_of(self, row: int) -> int:
        """A guided row's guide."""
        return int(self._guides[row])

    @property
    def rows(self) -> list[int]:
        """All guided rows."""
        return list(self._rows)

    def reopen(self, tokens_of: dict[int, Int32], guides: Iterable[int] | None = None) -> None:
        """The grammar does not know these guides, or any: they are opened again, with all tokens of their rows."""
        wanted = None if guides is None else set(guides)
        for row, sequence in self._rows.items():
            if wanted is None or self.guide_of(row) in wanted:
                self._open(sequence, tokens_of[row])
        if wanted is None:
            self._changes.closed.clear()
