"""The drafter's shell: tokens in, guesses out."""

from __future__ import annotations

from typing import Any

from pageant.actors.drafter.base import load_drafter
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.protocol.drafting import Propose, Proposed, Speculation
from pageant.protocol.roles import DRAFTER


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
        if self.sender_incarnation < self._scheduler:
            return  # it died before this came
        if self.sender_incarnation > self._scheduler:
            self._scheduler = self.sender_incarnation
            self._close(self._open.copy())
        self._close(message.closed.tolist())
        for sequence in message.opened:
            self._open.add(sequence.serial)
            self._drafter.open(sequence.serial, sequence.token_ids)
        if not len(message.serials):
            return
        counts, token_ids = self._drafter.propose(
            message.serials, message.counts, message.token_ids, message.wanted
        )
        seconds = self.clock.now() - began
        answer = Proposed(number=message.number, counts=counts, token_ids=token_ids, seconds=seconds)
        self.tell(self.sender, answer)

    def _close(self, serials: Any) -> None:
        for serial in serials:
            if serial in self._open:
                self._open.remove(serial)
                self._drafter.close(serial)
