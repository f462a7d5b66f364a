"""The partial-block index: finds blocks that continue a prefix with the same first tokens as a new sequence.

Names find whole blocks only. Where a new sequence parts from a cached one within a block, this index finds the
tokens that they share, and their KV is copied into a block of the new sequence's own: copy-on-write, token by
token. Blocks are indexed by their parent's name and their first token, so that only similar ones meet. Of many
similar blocks, the newest few are compared. All is O(1) per block.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pageant.actors.blocks.tail_index import TailIndex

TOKEN_BYTES = 4
# The most blocks that are compared with the wanted tokens.
FANOUT_MAX = 8

# A block, its parent's name, its tokens, the step that computes the last of them, and how many are computed before.
Branch = tuple[int, bytes, bytes, int, int]


class PartialBlockIndex:
    """Index of the named blocks, full or partly filled, by parent and first token.

    Columns have an entry per block: an object for each block would be work for the garbage collector.
    """

    def __init__(self, num_blocks: int) -> None:
        self._by_start = TailIndex()

        # The key of each block: its parent's name and its first token; b"" if it is not indexed.
        self._starts = [b""] * num_blocks
        # The tokens of each block, as int32 bytes.
        self._tokens = [b""] * num_blocks
        # The step that computes the last token of each block.
        self._steps = [0] * num_blocks
        # How many tokens of each block are computed before that step.
        self._nums_before = [0] * num_blocks

    def add(self, branches: Iterable[Branch]) -> None:
        """Index blocks with their tokens."""
        starts, contents, steps, befores = self._starts, self._tokens, self._steps, self._nums_before
        added: list[int] = []
        for block, parent, tokens, step, num_before in branches:
            starts[block] = parent + tokens[:TOKEN_BYTES]
            contents[block] = tokens
            steps[block] = step
            befores[block] = num_before
            added.append(block)
        self._by_start.add(added, map(starts.__getitem__, added))

    def remove(self, blocks: list[int], _: list[bytes]) -> None:
        """Remove blocks that had names and hold other tokens from now on."""
        starts, contents = self._starts, self._tokens
        self._by_start.remove(blocks, map(starts.__getitem__, blocks))
        for block in blocks:
            starts[block] = contents[block] = b""

    def find(self, parent: bytes, wanted: bytes, step: int) -> tuple[int | None, int]:
        """Return the block after `parent` that shares most of the first `wanted` tokens, and their number.

        Counts only tokens that are computed before `step`. Returns (None, 0) if there is none.
        """
        best, most = None, 0
        for block in islice(self._by_start.under(parent + wanted[:TOKEN_BYTES]), FANOUT_MAX):
            count = common_tokens(self._tokens[block], wanted)
            if self._steps[block] >= step:
                count = min(count, self._nums_before[block])
            if count > most:
                best, most = block, count
        return best, most

    def step_of(self, block: int) -> int:
        """Return the step that computes the last token of a block."""
        return self._steps[block]

    def all_computed(self) -> None:
        """Note that no block waits for a step any more."""
        self._steps = [0] * len(self._steps)

    def holds(self, block: int) -> tuple[bytes, bytes]:
        """Return a block's parent and its tokens."""
        return self._starts[block][:-TOKEN_BYTES], self._tokens[block]

    def __len__(self) -> int:
        return len(self._by_start)


def common_tokens(one: bytes, other: bytes) -> int:
    """Return how many tokens the two runs have in common at their beginning."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // TOKEN_BYTES
    pairs = zip(memoryview(one).cast("i"), memoryview(other).cast("i"), strict=False)
    return next(index for index, (a, b) in enumerate(pairs) if a != b)
