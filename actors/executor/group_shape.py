"""Shape of a group: how many executors compute a model together, and in how many stages."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GroupShape"]


class GroupShape(NamedTuple):
    """Stages of a group of executors, and members of each. Member 0, the leader, is of the last stage."""

    each: int
    stages: int

    @property
    def size(self) -> int:
        """Return how many members there are."""
        return self.each * self.stages

    def stage_of(self, rank: int) -> int:
        """Return a member's stage, from 0 on. Members of a stage are neighbours."""
        return self.stages - 1 - rank // self.each
