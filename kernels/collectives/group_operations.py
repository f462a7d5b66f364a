"""Operations of a group's member with the others: with all, with those of its stage, and with the stages beside it."""

from __future__ import annotations

from pageant.kernels.collectives.base import Collectives
from pageant.kernels.collectives.stage_links import StageLinks

__all__ = ["GroupOperations"]


class GroupOperations:
    """A member's side of its group.

    Each of its collectives has an order of its own, so that ranks of different stages may be at different steps.

    Args:
        everyone: of all members.
        stage: of those of this member's stage; the same where there is one stage.
    """

    def __init__(self, everyone: Collectives, stage: Collectives | None = None) -> None:
        self.everyone = everyone
        self.stage = everyone if stage is None else stage
        self.links: StageLinks | None = None
        """To the stages beside this member's; None where there is one stage."""
        if stage is not None:
            self.links = StageLinks(everyone, stage.size)

    @property
    def rank(self) -> int:
        """Return this member's number among all; 0 is the leader."""
        return self.everyone.rank

    @property
    def size(self) -> int:
        """Return how many members the group has."""
        return self.everyone.size
