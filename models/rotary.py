"""The rotary table: each position's cosines and sines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pageant.models.spec import LinearScaling, Llama3Scaling, RopeSpec

__all__ = ["rotary_table"]


def rotary_table(rope: RopeSpec, num_positions: int, device: torch.device) -> Tensor:
    """Return float32 [num_positions, rotary_dim]: each position's cosines, then its sines."""
    size = rope.rotary_dim
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    if isinstance(rope.scaling, LinearScaling):
        frequencies /= rope.scaling.factor
    elif isinstance(rope.scaling, Llama3Scaling):
        frequencies = _llama3_frequencies(frequencies, rope.scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep frequencies that turned often in the original context, divide those that turned seldom."""
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
