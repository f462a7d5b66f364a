"""What follows each name: the blocks that continue a prefix, and the tokens that they begin with.

Names find whole blocks only. Where a new sequence parts from a cached one within a block, the tokens before
that point are found here, and their KV is copied into a block of the new sequence's own: copy on write, token
by token. Blocks are filed under the name that they follow and their first token, so that unlike ones never
meet; of many alike, the newest few are looked at. All is O(1) per block.
"""

from __future__ import annotations

from itertools import islice

TOKEN_BYTES = 4
FANOUT_MAX = 8  # blocks compared with the tokens wanted


# Of a named block, full or partly filled: what it is filed under, the tokens that it holds, the step that
# computes the last of them, and how many are computed before that step. A named tuple takes five times as long
# to make, and one is made for every block that is filled.
_Branch = tuple[bytes, bytes, int, int]


class Branches:
    """All named blocks, by what they continue."""

    def __init__(self) -> None:
        self._branches: dict[int, _Branch] = {}
        self._by_start: dict[bytes, dict[int, None]] = {}  # blocks, oldest first

    def add(self, block: int, parent: bytes, tokens: bytes, step: int, num_before: int) -> None:
        """A block follows `parent` with `tokens`, all computed by `step`, and `num_before` of them before it."""
        start = parent + tokens[:TOKEN_BYTES]
        self._branches[block] = (start, tokens, step, num_before)
        blocks = self._by_start.get(start)
        if blocks is None:
            self._by_start[start] = {block: None}
        else:
            blocks[block] = None

    def remove(self, block: int, name: bytes) -> None:
        """It holds other tokens from now on."""
        start = self._branches.pop(block)[0]
        blocks = self._by_start[start]
        if len(blocks) == 1:
            del self._by_start[start]
        else:
            del blocks[block]

    def find(self, parent: bytes, wanted: bytes, step: int) -> tuple[int | None, int]:
        """A block that follows `parent`, and how many of the tokens `wanted` it begins with: the most of those
        looked at. They are computed before `step`."""
        best, most = None, 0
        for block in islice(reversed(self._by_start.get(parent + wanted[:TOKEN_BYTES], {})), FANOUT_MAX):
            _, tokens, computed_by, num_before = self._branches[block]
            count = common_tokens(tokens, wanted)
            if computed_by >= step:
                count = min(count, num_before)
            if count > most:
                best, most = block, count
        return best, most

    def holds(self, block: int) -> tuple[bytes, bytes]:
        """The name that a block follows, and its tokens."""
        start, tokens, _, _ = self._branches[block]
        return start[:-TOKEN_BYTES], tokens

    def __len__(self) -> int:
        return len(self._branches)


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two runs of them begin with in common."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // TOKEN_BYTES
    pairs = zip(memoryview(one).cast("i"), memoryview(other).cast("i"), strict=False)
    return next(index for index, (a, b) in enumerate(pairs) if a != b)
