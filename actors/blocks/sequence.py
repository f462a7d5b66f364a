"""A running sequence, as the block manager knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageant.actors.blocks.columns import Columns


@dataclass(slots=True, eq=False)
class Sequence:
    """Its blocks in order, and the names of its full blocks as far as tokens are known.

    It holds the blocks from `first` on. Those before it has given back, or never had: no window reaches them.
    What changes with every step is in its `slot` of the columns.
    """

    columns: Columns
    slot: int

    root: bytes  # the name that its first block follows
    blocks: list[int]
    names: list[bytes]
    contents: list[bytes]  # the tokens of the blocks that have those names
    start: bytes | None = None  # what its tail is filed under
    first: int = 0
    named: int = 0  # how many of its blocks have been given their names
    starts: list[tuple[int, int]] = field(default_factory=list)  # with a window: steps, and where they begin

    @property
    def tail(self) -> bytes:
        """Its known tokens after the last full block."""
        return self.columns.tails[self.slot, : self.columns.num_tail[self.slot]].tobytes()

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
        """The name that its block `index` follows."""
        return self.names[index - 1] if index else self.root

    @property
    def held(self) -> list[int]:
        """The blocks that it holds."""
        return self.blocks[self.first :] if self.first else self.blocks


@dataclass(slots=True)
class Found:
    """What is cached of a new sequence: full blocks from its block `first` on, and then a part of one.

    Where `blocks` has None, the block is in the next one of `slots`, of the host. `num_partial` tokens of the block
    after those are in block `source`, or else in the last slot.
    """

    first: int = 0
    blocks: list[int | None] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    source: int | None = None
    num_partial: int = 0

    @property
    def num_full(self) -> int:
        """How many blocks the cached tokens fill."""
        return self.first + len(self.blocks)

    @property
    def held(self) -> list[int]:
        """The blocks that are held for it."""
        return [block for block in self.blocks if block is not None]


@dataclass(slots=True)
class Copies:
    """Blocks that are copied before a step computes. All are read before any is written."""

    sources: list[int] = field(default_factory=list)
    destinations: list[int] = field(default_factory=list)
