"""Weights of 8, 5 or 4 bits: how they lie in memory, and what they stand for.

Weight-only and symmetric: 32 inputs in a row share a scale, and a weight is `scale * q` with a whole q in
[-128, 127], [-16, 15] or [-8, 7]. The scale may be negative, so that the number of the largest size gets the end of the
range that has one step more. Which scale is best is tried out: the squared error of a few near that one, and of
the least-squares scale of the best of those.

A product takes a weight for the numbers it stands for. What it rounds is the backend's: the reference rounds the
weights to the dtype of its x and multiplies in that, and the C++ kernels may round bfloat16 x to 8 bits as well, each
32 numbers by a scale of their own.

Rows lie apart from one another, as in the weight itself, so that part of a fused weight is a slice of it and an
embedding is a gather. Inputs are padded to a multiple of 64: a row is int8 [P], or, with 4 bits, uint8 [P / 2],
where of 64 inputs i is the lower half of byte i and 32 + i is the upper one, 8 more than they are. With 5 bits they are
16 more, and it is uint8 [5 P / 8]: those 32 bytes have the lower 4 bits of each, and of 8 bytes after them number
i % 4 has the fifth of i in bit i / 4, and number 4 + i % 4 that of 32 + i.

Or they are in tiles, where kernels like that better (`Kernels.quantized_tiles`): of 16 rows, a strip, each 64 inputs
are side by side, and of those 4 bytes of each row after 4 of the one before. So a product reads one piece of memory,
and finds the same inputs of 16 rows in a vector, or in a line of a tile. Strips lie as rows did.

A head of 8 bits may be in tiles in halves (`Kernels.halves`, `pageant.kernels.halves`): the upper four bits of its
numbers lie as 4 bits do, and so do the lower ones, somewhere else. Then q is in [-128, 112]; and so that no matrix has
a larger error than by rounding to the nearest of 255 numbers, more scales are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pageant.kernels.halves import HALVED_INPUTS_MAX, HALVED_MOST, join, split
from pageant.kernels.memory import Pages
from pageant.kernels.strips import STRIP, as_rows, as_strips, strips_of

__all__ = [
    "GROUP",
    "Bits",
    "QuantizedWeight",
    "Weight",
    "dequantize",
    "empty_quantized",
    "fill_codes",
    "in_parts",
    "quantize",
]

Bits = Literal[8, 5, 4]
GROUP = 32
_UNIT = 64


class _Rounding(NamedTuple):
    """Whole numbers that weights become, and what is tried for the one of the largest size.

    (csrc/quantized.cpp has the same.)
    """

    least: int
    most: int
    candidates: tuple[float, ...]


_ROUNDING = {
    8: _Rounding(-128, 127, (-128.0, -127.5, -127.0)),
    5: _Rounding(-16, 15, (-17.0, -16.5, -16.0, -15.5, -15.0)),
    4: _Rounding(-8, 7, (-9.0, -8.5, -8.0, -7.5, -7.0)),
}
_ROUNDING_HALVED = _Rounding(-128, HALVED_MOST, tuple(float(whole) for whole in range(-128, -107)))
_CHUNK = 1 << 20  # numbers that are quantised at a time


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedWeight:
    """A matrix [M, N], or a stack of them, along whose last dimension it is quantised."""

    bits: Bits
    values: Tensor
    """int8 [..., M, P], or uint8 [..., M, bits P / 8]; contiguous, as are the scales."""
    scales: Tensor
    """bfloat16 [..., M, P / 32]."""
    shape: tuple[int, ...]
    in_tiles: bool = False
    """Values are [..., M / 16, P / 64, 2 bits, 16, 4] then, and scales [..., M / 16, P / 64, 16, 2]."""
    lower: Tensor | None = None
    """The lower halves of a matrix of 8 bits in tiles, uint8 [M / 16, P / 64, 8, 16, 4]; its values are the upper ones
    then, and lie alike."""

    def __getitem__(self, index: int | slice | Tensor) -> QuantizedWeight:
        """Part of the first dimension: a matrix of a stack, or some rows. A view where a tensor's is one.

        Raises ValueError where rows in tiles are not a slice of whole strips.
        """
        if self.in_tiles and len(self.shape) == 2:
            index = strips_of(index, self.shape[0])
        values, scales = self.values[index], self.scales[index]
        lower = None if self.lower is None else self.lower[index]
        outer = (*values.shape[:-5], values.shape[-5] * STRIP) if self.in_tiles else values.shape[:-1]
        return replace(self, values=values, scales=scales, shape=(*outer, self.shape[-1]), lower=lower)

    @property
    def in_halves(self) -> bool:
        """Whether values are the upper halves of numbers."""
        return self.lower is not None

    def in_rows(self) -> QuantizedWeight:
        """The same weight not in tiles: itself, or a copy."""
        if not self.in_tiles:
            return self
        scales, *values = (as_rows(_fours(part)).flatten(-2).view(part.dtype) for part in self._parts())
        return QuantizedWeight(self.bits, join(*values) if self.in_halves else values[0], scales, self.shape)

    def fill(self, rows: QuantizedWeight) -> None:
        """Take the numbers of a weight of the same shape that is not in tiles."""
        values = split(rows.values) if self.in_halves else (rows.values,)
        for ours, theirs in zip(self._parts(), (rows.scales, *values), strict=True):
            if not self.in_tiles:
                ours.copy_(theirs)
                continue
            to = _fours(ours)  # [..., M / 16, P / 64, fours, 16]
            to.copy_(as_strips(torch.unflatten(theirs.view(torch.int32), -1, to.shape[-3:-1])))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in self._parts())

    def _parts(self) -> tuple[Tensor, ...]:
        """The scales, and the values or both halves of them."""
        values = (self.values,) if self.lower is None else (self.values, self.lower)
        return self.scales, *values


Weight = Tensor | QuantizedWeight


def empty_quantized(
    shape: tuple[int, ...],
    bits: Bits,
    room: Pages | torch.device | str,
    in_tiles: bool = False,
    in_halves: bool = False,
) -> QuantizedWeight:
    """Room for a weight, filled with whatever was there before, on a device or beside others.

    Rows of one in tiles are whole strips; one `in_halves` is in tiles too.
    """
    pages = room if isinstance(room, Pages) else Pages(room)
    *outer, inputs = shape
    padded = -(-inputs // _UNIT) * _UNIT
    if in_tiles:
        *stack, rows = outer
        assert rows % STRIP == 0, "strips are whole"
        strips = (*stack, rows // STRIP, padded // _UNIT)
        scales = pages.empty((*strips, STRIP, _UNIT // GROUP), torch.bfloat16)
        if in_halves:
            assert bits == 8 and not stack and inputs <= HALVED_INPUTS_MAX, "a matrix that can have halves"
            upper, lower = (pages.empty((*strips, _UNIT // 8, STRIP, 4), torch.uint8) for _ in range(2))
            return QuantizedWeight(bits, upper, scales, tuple(shape), in_tiles, lower)
        values = pages.empty(
            (*strips, _UNIT * bits // 32, STRIP, 4), torch.int8 if bits == 8 else torch.uint8
        )
        return QuantizedWeight(bits, values, scales, tuple(shape), in_tiles)
    return QuantizedWeight(
        bits,
        pages.empty((*outer, padded * bits // 8), torch.int8 if bits == 8 else torch.uint8),
        pages.empty((*outer, padded // GROUP), torch.bfloat16),
        tuple(shape),
    )


def quantize(weight: Tensor, into: QuantizedWeight) -> None:
    """Quantise a matrix [M, N] into room of that shape, a few rows at a time."""
    for part, room in in_parts(weight, into, _CHUNK):
        q, scales = _quantize(part.float(), _ROUNDING_HALVED if into.in_halves else _ROUNDING[into.bits])
        room.fill(QuantizedWeight(into.bits, _pack(q, into.bits), scales.bfloat16(), room.shape))


def fill_codes(codes: Tensor, scales: Tensor, into: QuantizedWeight) -> None:
    """Keep whole numbers and scales as they are: dequantised, `into` is codes * scales of 32 inputs each.

    codes: int8 [M, N], within the range of `into.bits`. scales: float32 [M, N / 32], rounded to bfloat16.
    into: [M, N], not in halves, mutated.
    """
    assert not into.in_halves, "halves do not hold every code"
    padding = -codes.shape[1] % _UNIT
    groups = torch.unflatten(torch.nn.functional.pad(codes, (0, padding)), 1, (-1, GROUP))
    scales = torch.nn.functional.pad(scales, (0, groups.shape[1] - scales.shape[1]))
    into.fill(QuantizedWeight(into.bits, _pack(groups, into.bits), scales.bfloat16(), into.shape))


def in_parts(weight: Tensor, into: QuantizedWeight, numbers: int) -> Iterator[tuple[Tensor, QuantizedWeight]]:
    """Some rows of a matrix at a time, whole strips of about so many numbers, and the room that is theirs."""
    rows = max(1, numbers // max(1, weight.shape[1]) // STRIP) * STRIP
    for start in range(0, weight.shape[0], rows):
        stop = min(start + rows, weight.shape[0])
        yield weight[start:stop], into[start:stop]


def _quantize(weight: Tensor, rounding: _Rounding) -> tuple[Tensor, Tensor]:
    """Return q, float32 [M, P / 32, 32], and scales [M, P / 32], of weight, float32 [M, N]."""
    padding = -weight.shape[1] % _UNIT
    groups = torch.unflatten(torch.nn.functional.pad(weight, (0, padding)), 1, (-1, GROUP))
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best = torch.full_like(largest, torch.inf), largest, groups  # errors, scales, q
    for divisor in rounding.candidates:
        best = _better(best, groups, largest / divisor, rounding)
    _, _, q = best
    least_squares = (groups * q).sum(2, keepdim=True) / (q * q).sum(2, keepdim=True).clamp(min=1)
    _, scales, q = _better(best, groups, least_squares, rounding)
    return q, scales[..., 0]


def _better(
    best: tuple[Tensor, Tensor, Tensor], groups: Tensor, scales: Tensor, rounding: _Rounding
) -> tuple[Tensor, Tensor, Tensor]:
    """The best so far, or what these scales make where that is better."""
    scales = scales.bfloat16().float()
    inverse = torch.where(scales.abs() < 1e-30, 0, 1 / scales)
    q = (groups * inverse).clamp_(rounding.least, rounding.most).round_()
    errors = (groups - q * scales).square_().sum(2, keepdim=True)
    better = errors < best[0]
    new = (errors, scales, q)
    return tuple(torch.where(better, a, b) for a, b in zip(new, best, strict=True))  # type: ignore[return-value]


def _fours(part: Tensor) -> Tensor:
    """Values or scales in tiles by four bytes: int32 [..., M / 16, P / 64, fours, 16]."""
    fours = part.view(torch.int32).squeeze(-1)
    return fours if part.dtype != torch.bfloat16 else fours.unsqueeze(-2)


def _pack(q: Tensor, bits: Bits) -> Tensor:
    if bits == 8:
        return q.to(torch.int8).flatten(1)
    raised = torch.unflatten((q + 2 ** (bits - 1)).to(torch.uint8), 1, (-1, 2))  # [M, P / 64, 2, 32]
    low, high = (raised & 15).unbind(2)
    units = low | high << 4
    if bits == 5:
        fifths = torch.unflatten(raised >> 4, 3, (8, 4)) << _bit_places(q.device)
        units = torch.cat((units, fifths.sum(3, dtype=torch.uint8).flatten(2)), dim=2)
    return units.flatten(1)


def _bit_places(device: torch.device) -> Tensor:
    """Return the numbers of a byte's bits, uint8 [8, 1]. They are made on the device: a CUDA graph captures no copy of
    the host's memory."""
    return torch.arange(8, dtype=torch.uint8, device=device)[:, None]


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the matrix, or the stack of them, that a weight stands for."""
    weight = weight.in_rows()
    values = weight.values
    if weight.bits < 8:
        units = torch.unflatten(values, -1, (-1, _UNIT * weight.bits // 8))
        lower, fifths = units[..., :GROUP], units[..., GROUP:]
        raised = torch.stack((lower & 15, lower >> 4), dim=-2)  # [..., P / 64, 2, 32]
        if weight.bits == 5:
            places = torch.unflatten(fifths, -1, (2, 1, 4)) >> _bit_places(fifths.device)
            raised |= (places & 1).flatten(-2) << 4
        values = raised.flatten(-3).to(torch.int8) - 2 ** (weight.bits - 1)
    groups = torch.unflatten(values, -1, (-1, GROUP)) * weight.scales.float()[..., None]
    return groups.flatten(-2)[..., : weight.shape[-1]].to(dtype).contiguous()
