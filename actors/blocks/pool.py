"""The pool: a fixed number of blocks, each either held (references > 0) or free.

A free block may still hold a cached prefix. It stays in the index until it is taken for other tokens, the least
recently freed block first. Every operation is O(1) per block.

    held     references[b] > 0, not in the free list
    free     references[b] == 0, in the free list; cached if it has a name
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

Listener = Callable[[list[int], list[bytes]], object]


def _pass(*_: object) -> None:
    pass


class BlockPool:
    """Blocks 0 to num_blocks - 1.

    A subclass may change the order of evictions by overriding `next_victims` and, to keep its own books,
    `on_freed` and `on_taken`. All take many blocks at once: a call for each would cost more than its work.
    """

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        assert num_blocks > 0, "a pool has at least one block"
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        # How many sequences hold each block.
        self._references = [0] * num_blocks
        # The name of each block, or None.
        self._names: list[bytes | None] = [None] * num_blocks
        # The block of each name. The inverse of `_names`.
        self._index: dict[bytes, int] = {}
        # Blocks with no references, next victim first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.evictions = 0
        # Called with blocks that lose their names, and the names.
        self.on_unnamed: Listener = _pass
        # Called after `on_unnamed` if the blocks were taken for other tokens.
        self.on_evicted: Listener = _pass

    @property
    def num_free(self) -> int:
        """Return the number of blocks that no sequence holds, cached ones included."""
        return len(self._free)

    # What a subclass may override.

    def next_victims(self, count: int) -> list[int]:
        """Return the free blocks to take next. Here: blocks without a name first, then the least recently
        freed.
        """
        return list(islice(self._free, count))

    def on_freed(self, blocks: list[int]) -> None:
        """Note that blocks have just become free, in this order. Here: those without a name are taken first
        again.
        """
        names, move = self._names, self._free.move_to_end
        for block in blocks:
            if names[block] is None:
                move(block, last=False)

    def on_taken(self, blocks: list[int]) -> None:
        """Note that free blocks are about to be held again."""

    # What the allocation uses.

    def take(self, count: int) -> list[int]:
        """Hold `count` blocks, evicting what is cached in them. The caller knows that there are enough."""
        free, references = self._free, self._references
        assert count <= len(free), f"{count} blocks asked for, {len(free)} free"
        blocks = self.next_victims(count)
        self.on_taken(blocks)
        for block in blocks:
            del free[block]
            references[block] = 1
        evicted, lost = self._unname(blocks)
        if evicted:
            self.evictions += len(evicted)
            self.on_evicted(evicted, lost)
        return blocks

    def _unname(self, blocks: Iterable[int]) -> tuple[list[int], list[bytes]]:
        """Remove the names of blocks that have one. Return these blocks, and the names."""
        names, index = self._names, self._index
        unnamed: list[int] = []
        lost: list[bytes] = []
        for block in blocks:
            name = names[block]
            if name is not None:
                names[block] = None
                del index[name]
                unnamed.append(block)
                lost.append(name)
        if unnamed:
            self.on_unnamed(unnamed, lost)
        return unnamed, lost

    def match(self, names: Iterable[bytes]) -> list[int]:
        """Hold and return the blocks of the longest cached prefix of `names`."""
        blocks: list[int] = []
        for block in map(self._index.get, names):
            if block is None:
                break
            blocks.append(block)
        taken = [block for block in blocks if not self._references[block]]
        if taken:
            self.on_taken(taken)
        for block in taken:
            del self._free[block]
        for block in blocks:
            self._references[block] += 1
        return blocks

    def __contains__(self, name: bytes) -> bool:
        """Tell whether a block of that name is cached or held."""
        return name in self._index

    def find(self, name: bytes) -> int | None:
        """Return the block of that name, or None. It is not held by that."""
        return self._index.get(name)

    def free(self, blocks: Sequence[int]) -> None:
        """Free one reference to each block of a sequence: last first, so that its end is evicted first."""
        free, references = self._free, self._references
        freed = []
        for block in reversed(blocks):
            left = references[block] = references[block] - 1
            if left <= 0:
                assert left == 0, f"block {block} is freed more often than it is held"
                free[block] = None
                freed.append(block)
        self.on_freed(freed)

    def name(self, blocks: Sequence[int], names: Sequence[bytes]) -> list[bool]:
        """Name held blocks, which hold what their names say. Return which of them are indexed now.

        If another block has a name already, that one stays indexed.
        """
        if not self.enable_prefix_caching:
            return [False] * len(blocks)
        index, named, references = self._index, self._names, self._references
        fresh = []
        for block, name in zip(blocks, names, strict=True):
            assert references[block] > 0, f"block {block} is named while nobody holds it"
            is_fresh = named[block] is None and name not in index
            if is_fresh:
                index[name] = block
                named[block] = name
            fresh.append(is_fresh)
        return fresh

    def forget(self, blocks: Iterable[int]) -> None:
        """Remove the names of blocks that do not hold what their names say."""
        self._unname(blocks)

    def forget_all(self) -> int:
        """Remove all names, of held and free blocks. Return how many there were."""
        named = [block for block, _ in self.named()]
        self._unname(named)
        return len(named)

    @property
    def num_cached(self) -> int:
        """Return the number of free blocks that still hold a prefix. O(free)."""
        return sum(self._names[block] is not None for block in self._free)

    def named(self) -> Iterator[tuple[int, bytes]]:
        """Return every block that has a name, with the name."""
        return ((block, name) for name, block in self._index.items())

    def name_of(self, block: int) -> bytes | None:
        """Return the name of a block, or None."""
        return self._names[block]

    def references(self, block: int) -> int:
        """Return how many sequences hold a block."""
        return self._references[block]

    def check_integrity(self) -> None:
        """Assert the invariants. O(blocks); called at rest and in tests."""
        for block, references in enumerate(self._references):
            assert references >= 0, f"block {block} has {references} references"
            assert (block in self._free) == (references == 0), f"block {block}: free list and count disagree"
            name = self._names[block]
            assert name is None or self._index.get(name) == block, f"block {block} is not indexed by its name"
        named = sum(name is not None for name in self._names)
        assert named == len(self._index), f"{named} blocks have names, the index has {len(self._index)}"
