"""What follows each name: the blocks that continue a prefix, and the tokens that they begin with.

Names find whole blocks only. Where a new sequence parts from a cached one within a block, the tokens before
that point are found here, and their KV is copied into a block of the new sequence's own: copy on write, token
by token. Blocks are filed under the name that they follow and their first token, so that unlike ones never
meet; of many alike, the newest few are looked at. All is O(1) per block.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

TOKEN_BYTES = 4
FANOUT_MAX = 8  # blocks compared with the tokens wanted


class _Branch(NamedTuple):
    """What a named block, full or partly filled, holds."""

    start: bytes  # what it is filed under
    tokens: bytes
    step: int  # that computes the last of them
    num_before: int  # of them, that are computed before that step


class Branches:
    """All named blocks, by what they continue."""

    def __init__(self) -> None:
        self._branches: dict[int, _Branch] = {}
        self._by_start: dict[bytes, dict[int, None]] = {}  # blocks, oldest first

    def add(self, block: int, parent: bytes, tokens: bytes, step: int, num_before: int) -> None:
        """A block follows `parent` with `tokens`, all computed by `step`, and `num_before` of them before it."""
        start = parent + tokens[:TOKEN_BYTES]
        self._branches[block] = _Branch(start, tokens, step, max(0, num_before))
        self._by_start.setdefault(start, {})[block] = None

    def remove(self, block: int) -> None:
        """It holds other tokens from now on."""
        start = self._branches.pop(block).start
        blocks = self._by_start[start]
        del blocks[block]
        if not blocks:
            del self._by_start[start]

    def find(self, parent: bytes, wanted: bytes, step: int) -> tuple[int | None, int]:
        """A block that follows `parent`, and how many of the tokens `wanted` it begins with: the most of those
        looked at. They are computed before `step`."""
        best, most = None, 0
        for block in islice(reversed(self._by_start.get(parent + wanted[:TOKEN_BYTES], {})), FANOUT_MAX):
            branch = self._branches[block]
            count = common_tokens(branch.tokens, wanted)
            if branch.step >= step:
                count = min(count, branch.num_before)
            if count > most:
                best, most = block, count
        return best, most

    def __len__(self) -> int:
        return len(self._branches)


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two runs of them begin with in common."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // TOKEN_BYTES
    pairs = zip(memoryview(one).cast("i"), memoryview(other).cast("i"), strict=False)
    return next(index for index, (a, b) in enumerate(pairs) if a != b)
