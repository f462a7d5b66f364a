"""The rotary table: each position's cosines and sines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pageant.models.spec import LinearScaling, Llama3Scaling, LongRopeScaling, RopeSpec, YarnScaling

__all__ = ["rotary_axes", "rotary_table", "table_of_step"]


def rotary_table(rope: RopeSpec, num_positions: int, device: torch.device) -> Tensor:
    """Return float32 [num_positions, rotary_dim]: each position's cosines, then its sines.

    The number of positions is how many are served: `LongRopeScaling` chooses by it.
    """
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), _frequencies(rope, num_positions))
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    if isinstance(rope.scaling, YarnScaling | LongRopeScaling):
        table *= rope.scaling.attention_factor
    return table.to(device)


def rotary_axes(rope: RopeSpec, device: torch.device) -> Tensor:
    """Return int64 [rotary_dim / 2]: whether each frequency turns by time, height or width: 0, 1 or 2."""
    assert rope.sections is not None, "all frequencies turn by one position"
    if not rope.interleaved:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(rope.sections)).to(device)
    axes = torch.zeros(rope.rotary_dim // 2, dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * rope.sections[axis] : 3] = axis
    return axes.to(device)


def table_of_step(table: Tensor, axes: Tensor, positions: Tensor) -> Tensor:
    """Return the table of a step whose tokens have positions int64 [3, T]: float32 [T, rotary_dim], a row a token.

    Args:
        table: float32 [num_positions, rotary_dim]; see `rotary_table`.
        axes: int64 [rotary_dim / 2]; see `rotary_axes`.
    """
    half = torch.arange(len(axes), device=table.device)
    rows = table.view(len(table), 2, -1)[positions]  # [3, T, 2, rotary_dim / 2]
    return rows[axes, :, :, half].permute(1, 2, 0).flatten(1)


def _frequencies(rope: RopeSpec, num_positions: int) -> Tensor:
    """Return float32 [rotary_dim / 2]: by how much each pair turns from one position to the next."""
    size, scaling = rope.rotary_dim, rope.scaling
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        return _llama3_frequencies(frequencies, scaling)
    if isinstance(scaling, YarnScaling):
        return _yarn_frequencies(frequencies, scaling, rope)
    if isinstance(scaling, LongRopeScaling):
        is_long = num_positions > scaling.original_max_positions
        return frequencies / torch.tensor(scaling.long_factors if is_long else scaling.short_factors)
    return frequencies


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep frequencies that turned often in the original context, divide those that turned seldom."""
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _yarn_frequencies(frequencies: Tensor, scaling: YarnScaling, rope: RopeSpec) -> Tensor:
    """The same, blended from the index that turned `beta_fast` times to that which turned `beta_slow`."""

    def index(turns: float) -> float:
        wavelength = scaling.original_max_positions / turns
        return rope.rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    width = last - first or 0.001  # a step, where the two are one
    divided = ((torch.arange(len(frequencies)) - first) / width).clamp(0, 1)
    return (1 - divided) * frequencies + divided * frequencies / scaling.factor
