"""Whole numbers out of packed words."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["nibbles", "words_along_inputs", "words_along_outputs"]


def nibbles(packed: Tensor) -> Tensor:
    """Return uint8 [..., 2 N] of bytes [..., N]: the lower four bits of each, then the upper four."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def words_along_outputs(words: Tensor, bits: int) -> Tensor:
    """Return uint8 [R, 32 / bits * W] of int32 [R, W], each row's numbers from the lowest bits of its words up."""
    packed = words.contiguous().view(torch.uint8)
    return packed if bits == 8 else nibbles(packed)


def words_along_inputs(words: Tensor, bits: int) -> Tensor:
    """Return uint8 [C, 32 / bits * W] of int32 [W, C], each column's numbers from the lowest bits of its words up."""
    count, columns = words.shape
    packed = torch.unflatten(words.contiguous().view(torch.uint8), 1, (columns, 4))
    numbers = packed if bits == 8 else nibbles(packed)  # [W, C, 32 / bits]
    return numbers.transpose(0, 1).reshape(columns, count * 32 // bits)
