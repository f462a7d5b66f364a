"""A running sequence, as the block manager knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pageant.actors.blocks.columns import Columns


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence: its blocks in order, and the names of its full block groups as far as tokens are known.

    State that changes with every step is in its `slot` of the columns.
    """

    columns: Columns
    slot: int

    root: bytes
    """The parent of its first block group."""
    blocks: list[int]
    """One block of each layer group for each block group; NO_BLOCK where it holds none."""
    names: list[bytes]
    """Names of the full block groups."""
    contents: list[bytes]
    """Tokens of the block groups that have those names."""
    start: bytes | None = None
    """The key of its tail in the tail index; None while the tail is not indexed."""
    named: int = 0
    """How many of its block groups have been indexed."""
    firsts: list[int] = field(default_factory=list)
    """For each layer group, the first block group of which it holds the block."""
    is_local: bool = False
    """The names of its blocks mean something to this block manager alone."""

    @property
    def tail(self) -> bytes:
        """Return its known tokens after the last full block group, as int32 bytes."""
        return self.columns.tails[self.slot, : self.columns.num_tail[self.slot]].tobytes()

    @property
    def is_full(self) -> bool:
        """Tell whether the tail fills a block group."""
        return bool(self.columns.num_tail[self.slot] == self.columns.tails.shape[1])

    @property
    def granted(self) -> int:
        """Return the tokens that it has been granted slots for, drafts excluded."""
        return int(self.columns.granted[self.slot])

    @property
    def granted_step(self) -> int:
        """Return the step of the exchange that granted them."""
        return int(self.columns.granted_step[self.slot])

    @property
    def granted_before(self) -> int:
        """Return the tokens that it had been granted before that exchange."""
        return int(self.columns.granted_before[self.slot])

    def parent(self, index: int) -> bytes:
        """Return the name that its block group `index` follows."""
        return self.names[index - 1] if index else self.root

    @property
    def held(self) -> list[int]:
        """Return the blocks that it holds."""
        return [block for block in self.blocks if block >= 0] if any(self.firsts) else self.blocks


class Filled(NamedTuple):
    """Block groups of a sequence, from `first` on, that hold `contents` when step `step` has been computed.

    Before that step they hold the part that is among the sequence's first `granted_before` tokens.
    """

    sequence: Sequence
    first: int
    names: list[bytes]
    contents: list[bytes]
    step: int
    granted_before: int = 0


# An entry for a block that is restored from a lower tier.
RESTORED = -2


@dataclass(slots=True)
class Found:
    """The cached part of a new sequence: full block groups, and then a part of one.

    `num_partial` tokens after the full block groups are in the blocks `sources`, one of each layer group. If
    `sources` is empty, they are in the last slots instead.
    """

    num_full: int = 0
    blocks: list[int] = field(default_factory=list)
    """Blocks of the full block groups; NO_BLOCK where no window reaches, RESTORED where a slot has it."""
    slots: list[int] = field(default_factory=list)
    """Slots of lower tiers, for each RESTORED entry and for the partial block group."""
    sources: list[int] = field(default_factory=list)
    num_partial: int = 0
    grows: bool = False
    """More of it will be cached when the step at hand is over."""

    @property
    def held(self) -> list[int]:
        """Return the blocks that are held for the sequence."""
        return [block for block in self.blocks if block >= 0]

    @property
    def restored(self) -> list[int]:
        """Return the indices of the RESTORED blocks."""
        return [place for place, block in enumerate(self.blocks) if block == RESTORED]


@dataclass(slots=True)
class Copies:
    """Blocks to copy before a step computes. All are read before any is written."""

    sources: list[int] = field(default_factory=list)
    destinations: list[int] = field(default_factory=list)
