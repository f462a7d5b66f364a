"""Sums along a fixed binary tree, in torch: the oracle of the C++ ones, and their stand-in on other devices."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["finish_sum", "tree_sum"]


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of at least one tensor of a dtype and shape [...], added along the tree of `all_reduce`.

    Returns parts[0] itself where it is alone. Nothing is mutated.
    """
    level = list(parts)
    while len(level) > 1:
        odd = level[len(level) // 2 * 2 :]
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + odd
    return level[0]


def finish_sum(total: Tensor, out: Tensor, bias: Tensor | None) -> None:
    """Add the bias to a sum, float32 [T, N], and round it once into `out`, [T, N] in its dtype, mutated."""
    out.copy_(total if bias is None else total + bias.float())
