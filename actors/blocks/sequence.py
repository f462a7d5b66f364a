"""A running sequence, as the block manager knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pageant.actors.blocks.columns import Columns


@dataclass(slots=True, eq=False)
class Sequence:
    """Its blocks in order, and the names of its full stretches as far as tokens are known.

    What changes with every step is in its `slot` of the columns.
    """

    columns: Columns
    slot: int

    root: bytes  # the name that its first stretch follows
    blocks: list[int]  # of each stretch, one of each group; NOTHING where it holds none
    names: list[bytes]
    contents: list[bytes]  # the tokens of the stretches that have those names
    start: bytes | None = None  # what its tail is filed under
    named: int = 0  # how many of its stretches have been given their names
    firsts: list[int] = field(
        default_factory=list
    )  # of each group, the stretch from which on it holds blocks

    @property
    def tail(self) -> bytes:
        """Its known tokens after the last full stretch."""
        return self.columns.tails[self.slot, : self.columns.num_tail[self.slot]].tobytes()

    @property
    def is_full(self) -> bool:
        """Whether those fill a stretch."""
        return bool(self.columns.num_tail[self.slot] == self.columns.tails.shape[1])

    @property
    def granted(self) -> int:
        """Tokens that it has been granted slots for, guesses apart."""
        return int(self.columns.granted[self.slot])

    @property
    def granted_step(self) -> int:
        """By the exchange of this step."""
        return int(self.columns.granted_step[self.slot])

    @property
    def granted_before(self) -> int:
        """Tokens that it had been granted before that exchange."""
        return int(self.columns.granted_before[self.slot])

    def parent(self, index: int) -> bytes:
        """The name that its stretch `index` follows."""
        return self.names[index - 1] if index else self.root

    @property
    def held(self) -> list[int]:
        """The blocks that it holds."""
        return [block for block in self.blocks if block >= 0] if any(self.firsts) else self.blocks


class Filled(NamedTuple):
    """Stretches of a sequence, from `first` on, that hold `contents` when a step has been computed, and before it as
    much of them as is among the sequence's first `granted_before` tokens."""

    sequence: Sequence
    first: int
    names: list[bytes]
    contents: list[bytes]
    step: int
    granted_before: int = 0


RESTORED = -2  # stands for a block that comes from below


@dataclass(slots=True)
class Found:
    """What is cached of a new sequence: full stretches, and then a part of one.

    `num_partial` tokens of the stretch after the full ones are in the blocks `sources`, one of each group, or else in
    as many slots, the last ones.
    """

    num_full: int = 0
    blocks: list[int] = field(default_factory=list)  # of the full stretches; NOTHING where no window reaches
    slots: list[int] = field(
        default_factory=list
    )  # of the host, for each that is RESTORED, and for the partial ones
    sources: list[int] = field(default_factory=list)
    num_partial: int = 0

    @property
    def held(self) -> list[int]:
        """The blocks that are held for it."""
        return [block for block in self.blocks if block >= 0]

    @property
    def restored(self) -> list[int]:
        """The places of its blocks that come from below."""
        return [place for place, block in enumerate(self.blocks) if block == RESTORED]


@dataclass(slots=True)
class Copies:
    """Blocks that are copied before a step computes. All are read before any is written."""

    sources: list[int] = field(default_factory=list)
    destinations: list[int] = field(default_factory=list)
