"""The pool: a fixed number of blocks, each either held (references > 0) or free.

A free block may still hold a named prefix; it stays in the index until it is given to someone else, the
least recently freed first. Every operation is O(1) per block.

    held     references[b] > 0, not in the free list
    free     references[b] == 0, in the free list; cached if it has a name
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence


def _pass(*_: object) -> None:
    pass


class BlockPool:
    """Blocks 0 to num_blocks - 1.

    A subclass may order evictions otherwise, by overriding `next_victim` and, to keep its own books,
    `on_freed` and `on_taken`.
    """

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        assert num_blocks > 0, "a pool has at least one block"
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._references = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.evictions = 0
        self.on_unnamed: Callable[[int, bytes], object] = _pass  # told of every block that loses its name,
        self.on_evicted: Callable[[int, bytes], object] = _pass  # and then if it is for want of room

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free)

    # What a subclass may override.

    def next_victim(self) -> int:
        """The free block to be taken next. Here: unnamed ones first, then the least recently freed."""
        return next(iter(self._free))

    def on_freed(self, block: int) -> None:
        """A block has just become free. Here: without a name it is the first to be taken again."""
        if self._names[block] is None:
            self._free.move_to_end(block, last=False)

    def on_taken(self, block: int) -> None:
        """A free block is about to be held again."""

    # What the allocation uses.

    def take(self, count: int) -> list[int]:
        """Holds `count` blocks, evicting what is cached in them. The caller knows that there are enough."""
        free, names, references = self._free, self._names, self._references
        assert count <= len(free), f"{count} blocks asked for, {len(free)} free"
        blocks = []
        for _ in range(count):
            block = self.next_victim()
            self.on_taken(block)
            del free[block]
            if names[block] is not None:
                self._evict(block)
            references[block] = 1
            blocks.append(block)
        return blocks

    def _evict(self, block: int) -> None:
        name = self._names[block]
        assert name is not None, f"block {block} has no name to lose"
        del self._index[name]
        self._names[block] = None
        self.evictions += 1
        self.on_unnamed(block, name)
        self.on_evicted(block, name)

    def match(self, names: Iterable[bytes]) -> list[int]:
        """Holds the blocks of the longest cached prefix of `names`."""
        blocks = []
        for name in names:
            block = self._index.get(name)
            if block is None:
                break
            if self._references[block] == 0:
                self.on_taken(block)
                del self._free[block]
            self._references[block] += 1
            blocks.append(block)
        return blocks

    def __contains__(self, name: bytes) -> bool:
        """Whether a block of that name is cached or held."""
        return name in self._index

    def find(self, name: bytes) -> int | None:
        """The block of that name, if there is one. Nobody holds it for that."""
        return self._index.get(name)

    def free(self, blocks: Sequence[int]) -> None:
        """Gives up one reference to each block of a sequence: last first, so that its end is evicted first."""
        for block in reversed(blocks):
            references = self._references[block] = self._references[block] - 1
            assert references >= 0, f"block {block} is freed more often than it is held"
            if references == 0:
                self._free[block] = None
                self.on_freed(block)

    def name(self, block: int, name: bytes) -> bool:
        """A held block holds what `name` says. If another one already is, that one stays indexed.
        Returns whether this one is now."""
        assert self._references[block] > 0, f"block {block} is named while nobody holds it"
        if not self.enable_prefix_caching or self._names[block] is not None or name in self._index:
            return False
        self._index[name] = block
        self._names[block] = name
        return True

    def forget(self, blocks: Iterable[int]) -> None:
        """Blocks do not hold what their names say: nobody is to find them."""
        for block in blocks:
            name, self._names[block] = self._names[block], None
            if name is not None:
                del self._index[name]
                self.on_unnamed(block, name)

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a prefix. O(free)."""
        return sum(self._names[block] is not None for block in self._free)

    def named(self) -> Iterator[tuple[int, bytes]]:
        """Every block that has a name."""
        return ((block, name) for name, block in self._index.items())

    def name_of(self, block: int) -> bytes | None:
        """What a block is named, if it is."""
        return self._names[block]

    def references(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._references[block]

    def check_integrity(self) -> None:
        """Asserts what must always hold. O(blocks); called at rest and in tests."""
        for block, references in enumerate(self._references):
            assert references >= 0, f"block {block} has {references} references"
            assert (block in self._free) == (references == 0), f"block {block}: free list and count disagree"
            name = self._names[block]
            assert name is None or self._index.get(name) == block, f"block {block} is not indexed by its name"
        named = sum(name is not None for name in self._names)
        assert named == len(self._index), f"{named} blocks have names, the index has {len(self._index)}"
