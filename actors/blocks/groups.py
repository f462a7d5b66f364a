"""Layer groups: the blocks of a sequence that attention reaches, where layers have sliding windows.

A token attends over the last `size` tokens, itself included. Blocks that no later token reaches are freed. A
sequence can begin wherever the blocks that its first token reaches are cached, whatever became of those before
them.

Where only some layers have a window, or windows differ, layers are in groups of equal size, so that all blocks
have the same size (after vLLM's hybrid KV cache manager). A sequence has a block of each group for every
`block_size` of its tokens, next to each other in its table. These blocks together are a block group.

Blocks of the last groups may hold states of recurrent layers: those after the last of the block's tokens. Such a block
is of use to others only when it is full, and when the step that fills it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

# An entry of a block table without a block: it was freed, or never allocated.
NO_BLOCK = -1


class Groups:
    """The layer groups of a model. The first reaches furthest.

    Args:
        windows: the attention window of each, in tokens; None is unlimited.
        num_states: how many of the groups, the last ones, hold states.
    """

    def __init__(self, windows: Iterable[int | None], block_size: int, num_states: int = 0) -> None:
        self.block_size, self.windows = block_size, tuple(windows)
        assert self.windows, "a model has at least one group of layers"
        assert self.windows[0] is None or None not in self.windows, "the first group reaches furthest"
        self.has_states = num_states > 0
        self.windowed = [group for group, window in enumerate(self.windows) if window is not None]

    def __len__(self) -> int:
        return len(self.windows)

    def first(self, group: int, position: int) -> int:
        """Return the first block group whose block of layer group `group` the token at `position` reaches."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def next_free(self, group: int, first: int) -> int:
        """Return the position from which on no token reaches the block of layer group `group` in block group
        `first`.
        """
        window = self.windows[group]
        assert window is not None, "it always is"
        return (first + 1) * self.block_size + window - 1

    def num_blocks(self, first_token: int, chunk: int, total: int) -> int:
        """Return the most blocks that a sequence of `total` tokens holds, computed from `first_token` on in
        chunks.

        Two chunks count, since blocks of a chunk that may not have been computed are not freed. Where more are
        planned ahead, the blocks of a third are granted when the first has been computed.
        """
        count = 0
        for group, window in enumerate(self.windows):
            end = total
            if window is not None:
                end = min(total, max(first_token, window) + 2 * chunk + self.block_size)
            count += -(-end // self.block_size) - self.first(group, first_token)
        return count

    def longest(self, end: int, cached: Callable[[int, int], bool]) -> int:
        """Return the most block groups, at most `end`, that a sequence can begin with.

        All blocks that the token after them reaches must be cached; `cached` tells whether a layer group's
        block is.
        """
        for group, window in enumerate(self.windows):
            if window is None:
                end = next((index for index in range(end) if not cached(group, index)), end)
        index = end
        while index > min((self.first(group, end * self.block_size) for group in self.windowed), default=end):
            index -= 1
            for group in self.windowed:
                if index >= self.first(group, end * self.block_size) and not cached(group, index):
                    end = index
                    break
        return end
