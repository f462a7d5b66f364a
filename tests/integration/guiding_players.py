"""Grammars that are late, whose answers are lost, or that never answer."""

from __future__ import annotations

import numpy as np

from pageant.actors.drafter.base import SequenceDrafter
from pageant.actors.grammar.actor import Grammar

RIGHT: list[list[int]] = []  # sequences that are to be drafted

LATE_SECONDS = 0.25  # more than a step waits, on a slow machine too


class LateGrammar(Grammar):
    """Every fifth answer comes late; once in a while, for half of the rows only."""

    count = 0
    is_late = False

    async def _answer_drafts(self, executor, followed, *drafts):
        if self.is_late:
            self.is_late = False  # they have no answer
        else:
            await super()._answer_drafts(executor, followed, *drafts)

    def _tell_masks(self, executor, epoch, masks):
        self.count += 1
        if self.count % 5 or masks.ahead.any() or not len(masks.guides):
            super()._tell_masks(executor, epoch, masks)
            return
        self.is_late = True
        half = len(masks.guides) // 2 if self.count % 2 else 0
        tell = super()._tell_masks
        tell(executor, epoch, part(masks, slice(0, half)))
        late = part(masks, slice(half, None))._replace(failed={})
        self._cell.node.loop.call_later(LATE_SECONDS, lambda: tell(executor, epoch, late))


class LossyGrammar(Grammar):
    """Grammar whose tenth answer is lost."""

    count = 0

    def _tell_masks(self, executor, epoch, masks):
        self.count += 1
        if self.count != 10:
            super()._tell_masks(executor, epoch, masks)


class MuteGrammar(Grammar):
    """Has nothing to say about an expression that begins with "mute", but for its first token."""

    mute: dict = {}  # noqa: RUF012

    def _opened_now(self, executor, followed, opened):
        begin = {one.guide: one.position for one in opened if is_mute(one.structured_outputs)}
        self.mute = {**begin, **self.mute}
        return super()._opened_now(executor, followed, opened)

    def _tell_masks(self, executor, epoch, masks):
        pairs = zip(masks.guides.tolist(), masks.positions.tolist(), strict=True)
        said = [self.mute.get(guide, position) == position for guide, position in pairs]
        super()._tell_masks(executor, epoch, part(masks, np.flatnonzero(said)))


def is_mute(asked):
    """See `MuteGrammar`."""
    return (asked.regex or "").startswith("mute")


def part(masks, rows):
    """Some of them."""
    columns = (column[rows].copy() for column in masks[:4])
    return masks._replace(**dict(zip(masks._fields, columns, strict=False)))


class Guesser(SequenceDrafter):
    """Knows what is right, and says something else at every fifth place."""

    def guess(self, token_ids, wanted):
        """See `SequenceDrafter`."""
        for sequence in RIGHT:
            if sequence[: len(token_ids)] == token_ids:
                right = sequence[len(token_ids) :][:wanted]
                return [5 if (len(token_ids) + i) % 5 == 0 else token for i, token in enumerate(right)]
        return []
