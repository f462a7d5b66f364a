"""An eviction order of one's own: of the cached blocks, the least frequently used is given up first.

cd docs/examples
pageant run --topology eviction.yaml "Explain lambda"
pageant conformance pool eviction:LeastFrequentlyUsed
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import compress

from pageant.actors.blocks.actor import BlockManager
from pageant.actors.blocks.pool import BlockPool


class LeastFrequentlyUsed(BlockPool):
    """Counts how often a block's prefix was wanted; of equals, the one freed first goes first.

    A heap holds an entry for each time that a block became free. An entry is stale once its block has been
    taken, or freed again since; stale ones are dropped when they come to the top.
    """

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, enable_prefix_caching)
        self._uses = [0] * num_blocks  # 0: no prefix in it
        self._turns = list(range(num_blocks))  # when each was last freed
        self._turn = num_blocks
        self._heap = [(0, block, block) for block in range(num_blocks)]  # (uses, turn, block)

    def next_victims(self, count: int) -> list[int]:
        victims: list[tuple[int, int, int]] = []
        while len(victims) < count:
            _, turn, block = entry = heapq.heappop(self._heap)
            if self.references(block) == 0 and self._turns[block] == turn:
                victims.append(entry)
        for entry in victims:  # they are free until they are taken
            heapq.heappush(self._heap, entry)
        return [block for _, _, block in victims]

    def on_freed(self, blocks: list[int]) -> None:
        for block in blocks:
            self._turn += 1
            self._turns[block] = self._turn
            heapq.heappush(self._heap, (self._uses[block], self._turn, block))

    def take(self, count: int) -> list[int]:
        blocks = super().take(count)
        for block in blocks:
            self._uses[block] = 0
        return blocks

    def match(self, names: Iterable[bytes]) -> list[int]:
        blocks = super().match(names)
        for block in blocks:
            self._uses[block] += 1
        return blocks

    def name(self, blocks: Sequence[int], names: Sequence[bytes]) -> list[bool]:
        fresh = super().name(blocks, names)
        for block in compress(blocks, fresh):
            self._uses[block] += 1
        return fresh


class FrequencyBlockManager(BlockManager):
    """The default block manager, but for the pool."""

    pool_class = LeastFrequentlyUsed
