"""Weights of 8, 5 or 4 bits: their layout in memory, and their values.

Quantisation is weight-only and symmetric. 32 inputs in a row share a scale, and a weight is `scale * q` with an
integer q in [-128, 127], [-16, 15] or [-8, 7]. The scale may be negative, so that the number of the largest
size gets the end of the range that has one step more. The best scale is found by trial: the squared error of a
few candidates near that one, and of the least-squares scale of the best of them.

A product takes a weight for its values. Rounding is up to the backend. The reference rounds the weights to the
dtype of its x and multiplies in that. The C++ kernels may round bfloat16 x to 8 bits as well, each 32 numbers
by a scale of their own.

Rows are separate, as in the weight itself, so that part of a fused weight is a slice of it and an embedding is
a gather. Inputs are padded to a multiple of 64, a k block. A row is int8 [P], or, with 4 bits, uint8 [P / 2]:
of the 64 inputs, i is the lower half of byte i and 32 + i is the upper one, each raised by 8. With 5 bits,
inputs are raised by 16, and a row is uint8 [5 P / 8]. The first 32 bytes have the lower 4 bits of each. Of the
next 8 bytes, number i % 4 has the fifth bit of i in bit i / 4, and number 4 + i % 4 that of 32 + i.

Weights may be in tiles instead, where kernels prefer that (`Kernels.quantized_tiles`). In a panel of 16 rows,
the k blocks of all rows are side by side, and in these 4 bytes of each row follow 4 of the row before. A
product then reads one contiguous piece of memory, and finds the same inputs of 16 rows in a vector, or in a
line of a tile. Panels follow each other as rows did.

An 8-bit head may be in tiles in halves (`Kernels.halves`, `pageant.kernels.halves`). The upper four bits of its
numbers have the layout of 4 bits, and so do the lower ones, in another tensor. q is then in [-128, 112]. More
candidates for the scale are tried, so that no matrix has a larger error than by rounding to the nearest of 255
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pageant.kernels.halves import HALVED_INPUTS_MAX, HALVED_MOST, join, split
from pageant.kernels.memory import Pages
from pageant.kernels.panels import PANEL_ROWS, as_panels, as_rows, panels_of

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
_K_BLOCK = 64


class _Rounding(NamedTuple):
    """The range of q, and the divisors that are tried for the number of the largest size.

    (csrc/gemm/quantized.cpp has the same.)
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
# Numbers that are quantised at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedWeight:
    """A matrix [M, N], or a stack of them, quantised along the last dimension."""

    bits: Bits
    values: Tensor
    """int8 [..., M, P], or uint8 [..., M, bits P / 8]; contiguous, as are the scales."""
    scales: Tensor
    """bfloat16 [..., M, P / 32]."""
    shape: tuple[int, ...]
    in_tiles: bool = False
    """Values are [..., M / 16, P / 64, 2 bits, 16, 4] then, and scales [..., M / 16, P / 64, 16, 2]."""
    lower: Tensor | None = None
    """The lower halves of an 8-bit matrix in tiles, uint8 [M / 16, P / 64, 8, 16, 4]. `values` are then the upper
    halves, in the same layout."""

    def __getitem__(self, index: int | slice | Tensor) -> QuantizedWeight:
        """Return part of the first dimension: a matrix of a stack, or some rows. A view where a tensor's is
        one.

        Raises ValueError if rows in tiles are not a slice of whole panels.
        """
        if self.in_tiles and len(self.shape) == 2:
            index = panels_of(index, self.shape[0])
        values, scales = self.values[index], self.scales[index]
        lower = None if self.lower is None else self.lower[index]
        outer = (*values.shape[:-5], values.shape[-5] * PANEL_ROWS) if self.in_tiles else values.shape[:-1]
        return replace(self, values=values, scales=scales, shape=(*outer, self.shape[-1]), lower=lower)

    @property
    def in_halves(self) -> bool:
        """Tell whether `values` are the upper halves of numbers."""
        return self.lower is not None

    def in_rows(self) -> QuantizedWeight:
        """Return the weight row-major: itself, or a copy."""
        if not self.in_tiles:
            return self
        scales, *values = (as_rows(_fours(part)).flatten(-2).view(part.dtype) for part in self._parts())
        return QuantizedWeight(self.bits, join(*values) if self.in_halves else values[0], scales, self.shape)

    def fill(self, rows: QuantizedWeight) -> None:
        """Copy the numbers of a row-major weight of the same shape."""
        values = split(rows.values) if self.in_halves else (rows.values,)
        for ours, theirs in zip(self._parts(), (rows.scales, *values), strict=True):
            if not self.in_tiles:
                ours.copy_(theirs)
                continue
            to = _fours(ours)  # [..., M / 16, P / 64, fours, 16]
            to.copy_(as_panels(torch.unflatten(theirs.view(torch.int32), -1, to.shape[-3:-1])))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in self._parts())

    def _parts(self) -> tuple[Tensor, ...]:
        """Return the scales, and the values or both halves of them."""
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
    """Return an uninitialised weight, on a device or in pages beside others.

    Rows of a weight in tiles are whole panels; a weight `in_halves` is in tiles too.
    """
    pages = room if isinstance(room, Pages) else Pages(room)
    *outer, inputs = shape
    padded = -(-inputs // _K_BLOCK) * _K_BLOCK
    if in_tiles:
        *stack, rows = outer
        assert rows % PANEL_ROWS == 0, "panels are whole"
        panels = (*stack, rows // PANEL_ROWS, padded // _K_BLOCK)
        scales = pages.empty((*panels, PANEL_ROWS, _K_BLOCK // GROUP), torch.bfloat16)
        if in_halves:
            assert bits == 8 and not stack and inputs <= HALVED_INPUTS_MAX, "a matrix that can have halves"
            upper, lower = (
                pages.empty((*panels, _K_BLOCK // 8, PANEL_ROWS, 4), torch.uint8) for _ in range(2)
            )
            return QuantizedWeight(bits, upper, scales, tuple(shape), in_tiles, lower)
        values = pages.empty(
            (*panels, _K_BLOCK * bits // 32, PANEL_ROWS, 4), torch.int8 if bits == 8 else torch.uint8
        )
        return QuantizedWeight(bits, values, scales, tuple(shape), in_tiles)
    return QuantizedWeight(
        bits,
        pages.empty((*outer, padded * bits // 8), torch.int8 if bits == 8 else torch.uint8),
        pages.empty((*outer, padded // GROUP), torch.bfloat16),
        tuple(shape),
    )


def quantize(weight: Tensor, into: QuantizedWeight) -> None:
    """Quantise a matrix [M, N] of any dtype into a weight of that shape, a few rows at a time."""
    for part, room in in_parts(weight, into, _CHUNK):
        q, scales = _quantize(part.float(), _ROUNDING_HALVED if into.in_halves else _ROUNDING[into.bits])
        room.fill(QuantizedWeight(into.bits, _pack(q, into.bits), scales.bfloat16(), room.shape))


def fill_codes(codes: Tensor, scales: Tensor, into: QuantizedWeight) -> None:
    """Keep whole numbers and scales as they are: dequantised, `into` is codes * scales of 32 inputs each.

    codes: int8 [M, N], within the range of `into.bits`. scales: float32 [M, N / 32], rounded to bfloat16.
    into: [M, N], not in halves, mutated.
    """
    assert not into.in_halves, "halves do not hold every code"
    padding = -codes.shape[1] % _K_BLOCK
    groups = torch.unflatten(torch.nn.functional.pad(codes, (0, padding)), 1, (-1, GROUP))
    scales = torch.nn.functional.pad(scales, (0, groups.shape[1] - scales.shape[1]))
    into.fill(QuantizedWeight(into.bits, _pack(groups, into.bits), scales.bfloat16(), into.shape))


def in_parts(weight: Tensor, into: QuantizedWeight, numbers: int) -> Iterator[tuple[Tensor, QuantizedWeight]]:
    """Yield some rows of a matrix [M, N] of any dtype at a time, and the part of `into` that receives them.

    The rows are whole panels of about `numbers` numbers.
    """
    rows = max(1, numbers // max(1, weight.shape[1]) // PANEL_ROWS) * PANEL_ROWS
    for start in range(0, weight.shape[0], rows):
        stop = min(start + rows, weight.shape[0])
        yield weight[start:stop], into[start:stop]


def _quantize(weight: Tensor, rounding: _Rounding) -> tuple[Tensor, Tensor]:
    """Return q, float32 [M, P / 32, 32], and scales [M, P / 32], of weight, float32 [M, N]."""
    padding = -weight.shape[1] % _K_BLOCK
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
    """Return the best result so far, or that of these scales if its error is smaller, group by group."""
    scales = scales.bfloat16().float()
    inverse = torch.where(scales.abs() < 1e-30, 0, 1 / scales)
    q = (groups * inverse).clamp_(rounding.least, rounding.most).round_()
    errors = (groups - q * scales).square_().sum(2, keepdim=True)
    better = errors < best[0]
    new = (errors, scales, q)
    return tuple(torch.where(better, a, b) for a, b in zip(new, best, strict=True))  # type: ignore[return-value]


def _fours(part: Tensor) -> Tensor:
    """Return values or scales in tiles by four bytes: int32 [..., M / 16, P / 64, fours, 16]."""
    fours = part.view(torch.int32).squeeze(-1)
    return fours if part.dtype != torch.bfloat16 else fours.unsqueeze(-2)


def _pack(q: Tensor, bits: Bits) -> Tensor:
    if bits == 8:
        return q.to(torch.int8).flatten(1)
    raised = torch.unflatten((q + 2 ** (bits - 1)).to(torch.uint8), 1, (-1, 2))  # [M, P / 64, 2, 32]
    low, high = (raised & 15).unbind(2)
    k_blocks = low | high << 4
    if bits == 5:
        fifths = torch.unflatten(raised >> 4, 3, (8, 4)) << _bit_places(q.device)
        k_blocks = torch.cat((k_blocks, fifths.sum(3, dtype=torch.uint8).flatten(2)), dim=2)
    return k_blocks.flatten(1)


def _bit_places(device: torch.device) -> Tensor:
    """Return the numbers of a byte's bits, uint8 [8, 1], made on the device: a CUDA graph captures no copy from
    the host.
    """
    return torch.arange(8, dtype=torch.uint8, device=device)[:, None]


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the values of a weight in `dtype`: [M, N], or [..., M, N] of a stack."""
    weight = weight.in_rows()
    values = weight.values
    if weight.bits < 8:
        k_blocks = torch.unflatten(values, -1, (-1, _K_BLOCK * weight.bits // 8))
        lower, fifths = k_blocks[..., :GROUP], k_blocks[..., GROUP:]
        raised = torch.stack((lower & 15, lower >> 4), dim=-2)  # [..., P / 64, 2, 32]
        if weight.bits == 5:
            places = torch.unflatten(fifths, -1, (2, 1, 4)) >> _bit_places(fifths.device)
            raised |= (places & 1).flatten(-2) << 4
        values = raised.flatten(-3).to(torch.int8) - 2 ** (weight.bits - 1)
    groups = torch.unflatten(values, -1, (-1, GROUP)) * weight.scales.float()[..., None]
    return groups.flatten(-2)[..., : weight.shape[-1]].to(dtype).contiguous()
