"""The drafter's shell: tokens in, guesses out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from pageant.actors.drafter.base import load_drafter
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.protocol.arrays import Int32Vector, int32
from pageant.protocol.drafting import Propose, Proposed, Speculation
from pageant.protocol.roles import DRAFTER

log = logging.getLogger("pageant.drafter")


class DrafterActor(Actor):
    """Proposes what may come next; the next step says what of it is right."""

    role = DRAFTER

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the drafter.

        Attributes:
            speculation: the method, and how many tokens at most.
        """

        speculation: Speculation = Speculation(method="ngram")

        def __post_init__(self) -> None:
            load_drafter(self.speculation)  # one that cannot be made is refused before anything starts

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._drafter = load_drafter(options.speculation)
        self._scheduler = 0  # the incarnation whose sequences these are
        self._open: set[int] = set()

    @receives
    def propose(self, message: Propose) -> None:
        """Takes in what was drawn, and answers with drafts."""
        began = self.clock.now()
        if self.sender_incarnation != self._scheduler:
            self._scheduler = self.sender_incarnation
            self._close(self._open.copy())
        try:
            counts, token_ids = self._guess(message)
        except Exception:
            # Nobody waits in vain, and nothing is lost but guesses: whoever is new gets them from a new drafter.
            log.exception("the drafter %s failed", self.options.speculation.method)
            self._drafter = load_drafter(self.options.speculation)
            self._open.clear()
            counts, token_ids = np.zeros(len(message.serials), np.int32), int32()
        if len(message.serials):
            seconds = self.clock.now() - began
            answer = Proposed(number=message.number, counts=counts, token_ids=token_ids, seconds=seconds)
            self.tell(self.sender, answer)

    def _guess(self, message: Propose) -> tuple[Int32Vector, Int32Vector]:
        self._close(message.closed.tolist())
        for sequence in message.opened:
            self._open.add(sequence.serial)
            self._drafter.open(sequence.serial, sequence.token_ids)
        known = np.array([serial in self._open for serial in message.serials.tolist()], np.bool_)
        if not known.any():
            return np.zeros(len(known), np.int32), int32()
        token_ids = message.token_ids
        if not known.all():
            token_ids = token_ids[np.repeat(known, message.counts)]
        found, drafts = self._drafter.propose(
            message.serials[known], message.counts[known], token_ids, message.wanted[known]
        )
        counts = np.zeros(len(known), np.int32)
        counts[known] = found
        return counts, int32(drafts)

    def _close(self, serials: Iterable[int]) -> None:
        for serial in serials:
            if serial in self._open:
                self._open.remove(serial)
                self._drafter.close(serial)
