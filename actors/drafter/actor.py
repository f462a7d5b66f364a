"""The drafter's shell: tokens in, drafts out."""

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
    """Proposes drafts, which the next step verifies."""

    role = DRAFTER

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of the drafter.

        Attributes:
            speculation: the method, and the most tokens.
        """

        speculation: Speculation = Speculation(method="ngram")

        def __post_init__(self) -> None:
            # A drafter that cannot be made is refused before anything starts.
            load_drafter(self.speculation)

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._drafter = load_drafter(options.speculation)
        # The incarnation of the scheduler that owns the open sequences.
        self._scheduler = 0
        # Serials of open sequences.
        self._open: set[int] = set()

    @receives
    def propose(self, message: Propose) -> None:
        """Record the tokens that were sampled, and answer with drafts."""
        began = self.clock.now()
        if self.sender_incarnation != self._scheduler:
            self._scheduler = self.sender_incarnation
            self._close(self._open.copy())
        try:
            counts, token_ids = self._guess(message)
        except Exception:
            # The scheduler gets an answer, and loses only drafts. Later sequences get theirs from a new drafter.
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
