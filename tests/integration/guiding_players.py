"""Grammars that are late, or never answer."""

from __future__ import annotations

from pageant.actors.drafter.base import SequenceDrafter
from pageant.actors.grammar.actor import Grammar

RIGHT: list[list[int]] = []  # sequences that are to be drafted

LATE_SECONDS = 0.06  # more than a step waits


class LateGrammar(Grammar):
    """Every fifth answer comes late; once in a while, for half of the rows only."""

    count = 0
    is_late = False

    async def _answer_drafts(self, executor, message):
        if len(message.drafting) and self.is_late:
            self.is_late = False  # they have no answer
        else:
            await super()._answer_drafts(executor, message)

    def _tell_masks(self, executor, epoch, keys, positions, ahead, bits, failed):
        self.count += 1
        if self.count % 5 or any(ahead) or not keys:
            super()._tell_masks(executor, epoch, keys, positions, ahead, bits, failed)
            return
        self.is_late = True
        half = len(keys) // 2 if self.count % 2 else 0
        late, now = slice(half, None), slice(0, half)
        super()._tell_masks(executor, epoch, keys[now], positions[now], ahead[now], bits[now].copy(), failed)
        columns = keys[late], positions[late], ahead[late], bits[late].copy()
        tell = super()._tell_masks
        self._cell.node.loop.call_later(LATE_SECONDS, lambda: tell(executor, epoch, *columns, {}))


class MuteGrammar(Grammar):
    """Has nothing to say about an expression that begins with "mute", but for its first token."""

    mute: set = frozenset()

    def _opened(self, key, opened, matcher):
        if (opened.structured_outputs.regex or "").startswith("mute"):
            self.mute = {*self.mute, key}
        return super()._opened(key, opened, matcher)

    def _tell_masks(self, executor, epoch, keys, positions, ahead, bits, failed):
        said = [row for row, key in enumerate(keys) if key not in self.mute or not self._begun(key)]
        columns = ([column[row] for row in said] for column in (keys, positions, ahead))
        super()._tell_masks(executor, epoch, *columns, bits[said], failed)

    def _begun(self, key):
        return self._guides._guides[key].length > 0


class Guesser(SequenceDrafter):
    """Knows what is right, and says something else at every fifth place."""

    def guess(self, token_ids, wanted):
        """See `SequenceDrafter`."""
        for sequence in RIGHT:
            if sequence[: len(token_ids)] == token_ids:
                right = sequence[len(token_ids) :][:wanted]
                return [5 if (len(token_ids) + i) % 5 == 0 else token for i, token in enumerate(right)]
        return []
