"""What follows each name: the blocks that continue a prefix, and the tokens that they begin with.

Names find whole blocks only. Where a new sequence parts from a cached one within a block, the tokens before
that point are found here, and their KV is copied into a block of the new sequence's own: copy on write, token
by token. Blocks are filed under the name that they follow and their first token, so that unlike ones never
meet; of many alike, the newest few are looked at. All is O(1) per block.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pageant.actors.blocks.shelves import Shelves

TOKEN_BYTES = 4
FANOUT_MAX = 8  # blocks compared with the tokens wanted

# A block, the name that it follows, its tokens, the step that computes the last of them, and how many are computed
# before that.
Branch = tuple[int, bytes, bytes, int, int]


class Branches:
    """All named blocks, full or partly filled, by what they continue."""

    def __init__(self, num_blocks: int) -> None:
        self._by_start = Shelves()
        # Of each block. One column each, since an object for each block would be the garbage collector's to go through.
        self._starts = [b""] * num_blocks  # what it is filed under
        self._tokens = [b""] * num_blocks  # that it holds
        self._steps = [0] * num_blocks  # that computes the last of them
        self._nums_before = [0] * num_blocks  # how many are computed before that step

    def add(self, branches: Iterable[Branch]) -> None:
        """These blocks hold what they say."""
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
        """Blocks, which had names, hold other tokens from now on."""
        starts, contents = self._starts, self._tokens
        self._by_start.remove(blocks, map(starts.__getitem__, blocks))
        for block in blocks:
            starts[block] = contents[block] = b""

    def find(self, parent: bytes, wanted: bytes, step: int) -> tuple[int | None, int]:
        """A block that follows `parent`, and how many of the tokens `wanted` it begins with: the most of those
        looked at. They are computed before `step`."""
        best, most = None, 0
        for block in islice(self._by_start.under(parent + wanted[:TOKEN_BYTES]), FANOUT_MAX):
            count = common_tokens(self._tokens[block], wanted)
            if self._steps[block] >= step:
                count = min(count, self._nums_before[block])
            if count > most:
                best, most = block, count
        return best, most

    def step_of(self, block: int) -> int:
        """The step that computes the last token of a block."""
        return self._steps[block]

    def all_computed(self) -> None:
        """No block waits for a step any more."""
        self._steps = [0] * len(self._steps)

    def holds(self, block: int) -> tuple[bytes, bytes]:
        """The name that a block follows, and its tokens."""
        return self._starts[block][:-TOKEN_BYTES], self._tokens[block]

    def __len__(self) -> int:
        return len(self._by_start)


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two runs of them begin with in common."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // TOKEN_BYTES
    pairs = zip(memoryview(one).cast("i"), memoryview(other).cast("i"), strict=False)
    return next(index for index, (a, b) in enumerate(pairs) if a != b)
