"""Grammars that are late, or never answer."""

from __future__ import annotations

from pageant.actors.drafter.base import SequenceDrafter
from pageant.actors.grammar.actor import Grammar

RIGHT: list[list[int]] = []  # sequences that are to be drafted

LATE_SECONDS = 0.006  # more than a step waits


class LateGrammar(Grammar):
    """Every fifth answer comes late; once in a while, for half of the rows only."""

    count = 0
    is_late = False

    def _answer(self, executor, epoch, keys):
        self.count += bool(keys)
        if self.count % 5 or not keys:
            super()._answer(executor, epoch, keys)
            return
        self.is_late = True
        half = len(keys) // 2 if self.count % 2 else 0
        super()._answer(executor, epoch, keys[:half])
        self._cell.node.loop.call_later(LATE_SECONDS, self._answer_late, executor, epoch, keys[half:])

    def _answer_drafts(self, executor, message):
        if len(message.drafting) and self.is_late:
            self.is_late = False  # they have no answer
        else:
            super()._answer_drafts(executor, message)

    def _answer_late(self, executor, epoch, keys):
        super()._answer(executor, epoch, [key for key in keys if key in self._positions])


class MuteGrammar(Grammar):
    """Has nothing to say about an expression that begins with "mute", but for its first token."""

    mute: set = frozenset()

    def _open(self, key, opened, matcher):
        super()._open(key, opened, matcher)
        if (opened.structured_outputs.regex or "").startswith("mute"):
            self.mute = {*self.mute, key}

    def _answer(self, executor, epoch, keys):
        super()._answer(
            executor, epoch, [key for key in keys if key not in self.mute or not self._begun(key)]
        )

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
