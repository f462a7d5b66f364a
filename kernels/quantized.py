"""Weights of 8 or 4 bits: how they lie in memory, and what they stand for.

Weight-only and symmetric: 32 inputs in a row share a scale, and a weight is `scale * q` with a whole q in
[-128, 127] or [-8, 7]. The scale may be negative, so that the number of the largest size gets the end of the
range that has one step more. Which scale is best is tried out: the squared error of a few near that one, and of
the least-squares scale of the best of those.

A product takes a weight for the numbers it stands for. What it rounds is the backend's: the reference rounds the
weights to the dtype of its x and multiplies in that, and the C++ kernels may round bfloat16 x to 8 bits as well, each
32 numbers by a scale of their own.

Rows lie apart from one another, as in the weight itself, so that part of a fused weight is a slice of it and an
embedding is a gather. Inputs are padded to a multiple of 64: a row is int8 [P], or, with 4 bits, uint8 [P / 2],
where of 64 inputs i is the lower half of byte i and 32 + i is the upper one, 8 more than they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pageant.kernels.memory import Pages

__all__ = ["GROUP", "Bits", "QuantizedWeight", "Weight", "dequantize", "empty_quantized", "quantize"]

Bits = Literal[8, 4]
GROUP = 32
_UNIT = 64
_CANDIDATES = {8: (-128.0, -127.5, -127.0), 4: (-9.0, -8.5, -8.0, -7.5, -7.0)}
"""What the number of the largest size is divided by. (csrc/quantized.cpp has the same.)"""
_CHUNK = 1 << 20  # numbers that are quantised at a time


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedWeight:
    """A matrix [M, N], or a stack of them, along whose last dimension it is quantised."""

    bits: Bits
    values: Tensor
    """int8 [..., M, P], or uint8 [..., M, P / 2]; contiguous, as are the scales."""
    scales: Tensor
    """bfloat16 [..., M, P / 32]."""
    shape: tuple[int, ...]

    def __getitem__(self, index: int | slice | Tensor) -> QuantizedWeight:
        """Part of the first dimension: a matrix of a stack, or some rows. A view where a tensor's is one."""
        values, scales = self.values[index], self.scales[index]
        return QuantizedWeight(self.bits, values, scales, (*values.shape[:-1], self.shape[-1]))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes + self.scales.nbytes


Weight = Tensor | QuantizedWeight


def empty_quantized(shape: tuple[int, ...], bits: Bits, room: Pages | torch.device | str) -> QuantizedWeight:
    """Room for a weight, filled with whatever was there before, on a device or beside others."""
    pages = room if isinstance(room, Pages) else Pages(room)
    *outer, inputs = shape
    padded = -(-inputs // _UNIT) * _UNIT
    return QuantizedWeight(
        bits,
        pages.empty((*outer, padded * bits // 8), torch.int8 if bits == 8 else torch.uint8),
        pages.empty((*outer, padded // GROUP), torch.bfloat16),
        tuple(shape),
    )


def quantize(weight: Tensor, into: QuantizedWeight) -> None:
    """Quantise a matrix [M, N] into room of that shape, a few rows at a time."""
    rows = max(1, _CHUNK // max(1, weight.shape[1]))
    for start in range(0, weight.shape[0], rows):
        part = into[start : start + rows]
        q, scales = _quantize(weight[start : start + rows].float(), into.bits)
        part.scales.copy_(scales)
        part.values.copy_(_pack(q, into.bits))


def _quantize(weight: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Return q, float32 [M, P / 32, 32], and scales [M, P / 32], of weight, float32 [M, N]."""
    padding = -weight.shape[1] % _UNIT
    groups = torch.unflatten(torch.nn.functional.pad(weight, (0, padding)), 1, (-1, GROUP))
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best = torch.full_like(largest, torch.inf), largest, groups  # errors, scales, q
    for divisor in _CANDIDATES[bits]:
        best = _better(best, groups, largest / divisor, bits)
    _, _, q = best
    least_squares = (groups * q).sum(2, keepdim=True) / (q * q).sum(2, keepdim=True).clamp(min=1)
    _, scales, q = _better(best, groups, least_squares, bits)
    return q, scales[..., 0]


def _better(
    best: tuple[Tensor, Tensor, Tensor], groups: Tensor, scales: Tensor, bits: Bits
) -> tuple[Tensor, Tensor, Tensor]:
    """The best so far, or what these scales make where that is better."""
    scales = scales.bfloat16().float()
    limit = 2 ** (bits - 1)
    inverse = torch.where(scales.abs() < 1e-30, 0, 1 / scales)
    q = (groups * inverse).clamp_(-limit, limit - 1).round_()
    errors = (groups - q * scales).square_().sum(2, keepdim=True)
    better = errors < best[0]
    new = (errors, scales, q)
    return tuple(torch.where(better, a, b) for a, b in zip(new, best, strict=True))  # type: ignore[return-value]


def _pack(q: Tensor, bits: Bits) -> Tensor:
    if bits == 8:
        return q.to(torch.int8).flatten(1)
    low, high = torch.unflatten((q + 8).to(torch.uint8), 1, (-1, 2)).unbind(2)  # [M, P / 64, 32] each
    return (low | high << 4).flatten(1)


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the matrix, or the stack of them, that a weight stands for."""
    values = weight.values
    if weight.bits == 4:
        nibbles = torch.stack((values & 15, values >> 4), dim=-2)  # [..., 2, P / 2]
        halves = torch.unflatten(nibbles, -1, (-1, GROUP)).transpose(-3, -2)  # [..., P / 64, 2, 32]
        values = halves.flatten(-3).to(torch.int8) - 8
    groups = torch.unflatten(values, -1, (-1, GROUP)) * weight.scales.float()[..., None]
    return groups.flatten(-2)[..., : weight.shape[-1]].to(dtype).contiguous()
