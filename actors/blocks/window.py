"""Which blocks of a sequence attention reaches, where every layer of a model has a sliding window.

A token attends over the last `size` tokens, itself included. What lies before that for all tokens to come is given
back, and a sequence can begin wherever the blocks that its first token reaches are cached, whatever became of those
before them. Where only some layers have windows the others read every block, in which the layers' keys and values
lie side by side; so nothing can be given back there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Window:
    """Of `size` tokens, over blocks of `block_size`."""

    def __init__(self, size: int, block_size: int) -> None:
        self.size, self.block_size = size, block_size

    def first_block(self, position: int) -> int:
        """The first block that the token at a position reaches."""
        return max(0, position - self.size + 1) // self.block_size

    def longest(self, names: Sequence[bytes], cached: Callable[[bytes], bool]) -> tuple[int, int]:
        """The blocks `first` to `end - 1` of a sequence whose blocks have these names, with the largest `end` such
        that all that the token after them reaches are cached."""
        end = len(names)
        index = end
        while index > self.first_block(end * self.block_size):
            index -= 1
            if not cached(names[index]):
                end = index
        return self.first_block(end * self.block_size), end
