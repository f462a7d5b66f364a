"""Numbers of blocks that a sequence may hold, where some layer groups hold states of recurrent layers.

Keys and values are counted for all tokens, whatever windows give back. Of states, a sequence holds those of the last
two chunks alone, however long it is: the blocks before them are given back.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["blocks_needed", "tokens_held"]


def blocks_needed(
    total: int, block_size: int, windows: Sequence[int | None], num_states: int = 0, chunk: int = 0
) -> int:
    """Return the blocks that are enough for a sequence of so many tokens.

    Args:
        windows: of all layer groups; see `ExecutorReady`.
        num_states: how many of the groups, the last ones, hold states.
        chunk: the most tokens that a step computes.
    """
    in_full = -(-total // block_size)
    lasting = len(windows) - num_states
    if not num_states:
        return in_full * lasting
    recent = max(window or 0 for window in windows[lasting:]) + 2 * chunk + block_size
    return in_full * lasting + min(in_full, -(-recent // block_size)) * num_states


def tokens_held(
    num_blocks: int, block_size: int, windows: Sequence[int | None], num_states: int = 0, chunk: int = 0
) -> int:
    """Return the tokens of the longest sequence for which so many blocks are enough; see `blocks_needed`."""
    low, high = 0, num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_needed(middle * block_size, block_size, windows, num_states, chunk) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low * block_size
