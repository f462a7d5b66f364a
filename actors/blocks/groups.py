"""Which blocks of a sequence attention reaches, where layers have sliding windows.

A token attends over the last `size` tokens, itself included. What lies before that for all tokens to come is given
back, and a sequence can begin wherever the blocks that its first token reaches are cached, whatever became of those
before them.

Where only some layers have a window, or windows differ, layers are in groups of as many, so that every block is as
large as any other, whoever's it is (after vLLM's hybrid KV cache manager): a sequence has a block of each group for
every `block_size` of its tokens, next to each other in its table. Such a row of blocks is called a stretch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

NOTHING = -1  # stands in a table for a block that was given back, or never had


class Groups:
    """The groups of a model's layers, of which the first reaches furthest.

    Args:
        windows: each group's, in tokens; None is over all.
    """

    def __init__(self, windows: Iterable[int | None], block_size: int) -> None:
        self.block_size, self.windows = block_size, tuple(windows)
        assert self.windows, "a model has at least one group of layers"
        assert self.windows[0] is None or None not in self.windows, "the first group reaches furthest"
        self.windowed = [group for group, window in enumerate(self.windows) if window is not None]

    def __len__(self) -> int:
        return len(self.windows)

    def first(self, group: int, position: int) -> int:
        """The first stretch whose block of a group the token at a position reaches."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def next_give_back(self, group: int, first: int) -> int:
        """The position from which on a group's block of stretch `first` is not reached any more."""
        window = self.windows[group]
        assert window is not None, "it always is"
        return (first + 1) * self.block_size + window - 1

    def num_blocks(self, first_token: int, chunk: int, total: int) -> int:
        """How many blocks a sequence of `total` tokens holds at most, to the end of these, if it is computed from a
        token on and in chunks of that size: two of them, for the blocks of one that may not have been computed are not
        given back. Where more are planned ahead, what a third lacks is granted when the first has been computed."""
        count = 0
        for group, window in enumerate(self.windows):
            end = total
            if window is not None:
                end = min(total, max(first_token, window) + 2 * chunk + self.block_size)
            count += -(-end // self.block_size) - self.first(group, first_token)
        return count

    def longest(self, end: int, cached: Callable[[int, int], bool]) -> int:
        """How many stretches a sequence can begin with, at most `end`, so that all blocks that the token after them
        reaches are cached; `cached` says so of a group's block of a stretch."""
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
