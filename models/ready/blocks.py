"""Blocks of GGUF files: the numbers that their bytes stand for.

Each function takes rows of blocks, uint8 [R, B, bytes of a block]. Where a type has whole numbers that share a scale,
it returns them and the scales: int8 [R, N], float32 [R, groups]. Where it has minima or tables of groups smaller than
ours besides, it returns the weights themselves: float32 [R, N].

In blocks of 32, byte i of the codes holds numbers i and i + 16. A block of 256 holds smaller groups, whose scales are
quantised in turn. Facts are from ggml's `ggml-quants.c`; the `gguf` package is the oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pageant.models.ready.mxfp4 import halved_powers, twice_e2m1

__all__ = ["CODES", "WEIGHTS"]

Codes = tuple[Tensor, Tensor]
_HALF = 16
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_POWERS_OF_3 = (1, 3, 9, 27, 81)


def _f16(pair: Tensor) -> Tensor:
    """The float16 number in two bytes, uint8 [..., 2]: float32 [..., 1]."""
    return pair.contiguous().view(torch.float16).float()


def _halves(packed: Tensor) -> Tensor:
    """Four-bit numbers of bytes [..., n]: the lower ones of all, then the upper ones, uint8 [..., 2 n]."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _fifths(bits: Tensor) -> Tensor:
    """The bits of four bytes [..., 4], from the lowest up: uint8 [..., 32]."""
    places = torch.arange(8, dtype=torch.uint8)
    return (bits[..., None] >> places & 1).flatten(-2)


def _rows(values: Tensor) -> Tensor:
    """Numbers of all blocks of a row, one after another: [R, N]."""
    return values.flatten(1)


def _q8_0(blocks: Tensor) -> Codes:
    return _rows(blocks[..., 2:].view(torch.int8)), _rows(_f16(blocks[..., :2]))


def _q4_0(blocks: Tensor) -> Codes:
    return _rows(_halves(blocks[..., 2:]).view(torch.int8) - 8), _rows(_f16(blocks[..., :2]))


def _q5_0(blocks: Tensor) -> Codes:
    raised = _halves(blocks[..., 6:]) | _fifths(blocks[..., 2:6]) << 4
    return _rows(raised.view(torch.int8) - 16), _rows(_f16(blocks[..., :2]))


def _mxfp4(blocks: Tensor) -> Codes:
    in_order = _halves(blocks[..., 1:])
    pairs = torch.unflatten(in_order, -1, (-1, 2))
    codes = twice_e2m1(pairs[..., 0] | pairs[..., 1] << 4)
    return _rows(codes), _rows(halved_powers(blocks[..., :1]))


def _iq4_nl(blocks: Tensor) -> Codes:
    table = torch.tensor(_IQ4, dtype=torch.int8)
    return _rows(table[_halves(blocks[..., 2:]).long()]), _rows(_f16(blocks[..., :2]))


def _iq4_xs(blocks: Tensor) -> Codes:
    """Eight groups of 32 numbers of a table; a group's scale has six bits."""
    table = torch.tensor(_IQ4, dtype=torch.int8)
    upper = blocks[..., 2:4].contiguous().view(torch.int16).to(torch.int32)
    groups = torch.arange(8, dtype=torch.int32)
    low = torch.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), dim=-1).flatten(-2)
    scales = (low.to(torch.int32) | (upper >> 2 * groups & 3) << 4) - 32
    codes = table[_halves(torch.unflatten(blocks[..., 8:], -1, (8, _HALF))).long()]
    return _rows(codes), _rows(_f16(blocks[..., :2]) * scales)


def _tq2_0(blocks: Tensor) -> Codes:
    """Numbers -1, 0 and 1 with one scale for 256."""
    codes = _twos(blocks[..., :64]).flatten(-2).view(torch.int8) - 1
    return _rows(codes), _rows(_f16(blocks[..., 64:]).expand(*blocks.shape[:-1], 8))


def _tq1_0(blocks: Tensor) -> Codes:
    """Numbers -1, 0 and 1, of which five or four are the digits of a byte to base 3."""
    parts = ((blocks[..., :32], 5), (blocks[..., 32:48], 5), (blocks[..., 48:52], 4))
    digits = [
        (packed * power).to(torch.int16) * 3 >> 8 for packed, count in parts for power in _POWERS_OF_3[:count]
    ]
    codes = torch.cat(digits, dim=-1).to(torch.int8) - 1
    return _rows(codes), _rows(_f16(blocks[..., 52:]).expand(*blocks.shape[:-1], 8))


def _q4_1(blocks: Tensor) -> Tensor:
    return _with_minimum(_halves(blocks[..., 4:]), blocks)


def _q5_1(blocks: Tensor) -> Tensor:
    return _with_minimum(_halves(blocks[..., 8:]) | _fifths(blocks[..., 4:8]) << 4, blocks)


def _with_minimum(codes: Tensor, blocks: Tensor) -> Tensor:
    return _rows(codes * _f16(blocks[..., :2]) + _f16(blocks[..., 2:4]))


def _twos(packed: Tensor) -> Tensor:
    """Two-bit numbers of 64 bytes [..., 64], 32 bytes at a time from the lowest bits up: uint8 [..., 8, 32]."""
    shifts = torch.tensor((0, 2, 4, 6), dtype=torch.uint8)[:, None]
    return (torch.unflatten(packed, -1, (2, 1, 32)) >> shifts & 3).flatten(-3, -2)


def _planes(packed: Tensor) -> Tensor:
    """The bits of 32 bytes [..., 32], the lowest of all first: uint8 [..., 8, 32]."""
    return packed[..., None, :] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1


def _q2_k(blocks: Tensor) -> Tensor:
    """Sixteen groups of 16, each with four bits for its scale and four for its minimum."""
    scales, codes = blocks[..., :16], _twos(blocks[..., 16:80])
    scale, minimum = _f16(blocks[..., 80:82]), _f16(blocks[..., 82:84])
    grouped = torch.unflatten(codes.flatten(-2), -1, (16, 16))
    weights = grouped * (scale * (scales & 15))[..., None] - (minimum * (scales >> 4))[..., None]
    return _rows(weights)


def _q3_k(blocks: Tensor) -> Tensor:
    """Sixteen groups of 16, each with a scale of six bits. A number's third bit, if clear, takes four from it."""
    third, low = _planes(blocks[..., :32]), _twos(blocks[..., 32:96])
    codes = low.view(torch.int8) + third.view(torch.int8) * 4 - 4
    packed = blocks[..., 96:108]
    shifts = torch.tensor((0, 2, 4, 6), dtype=torch.uint8)[:, None]
    upper = (packed[..., 8:, None].transpose(-1, -2) >> shifts & 3).flatten(-2)
    scales = (_halves(packed[..., :8]) | upper << 4).view(torch.int8) - 32
    weights = torch.unflatten(codes.flatten(-2), -1, (16, 16)) * (_f16(blocks[..., 108:]) * scales)[..., None]
    return _rows(weights)


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Six-bit numbers of twelve bytes [..., 12]: eight scales and eight minima, uint8 [..., 8] each."""
    first, second, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((first & 63, rest & 15 | first >> 6 << 4), dim=-1)
    return scales, torch.cat((second & 63, rest >> 4 | second >> 6 << 4), dim=-1)


def _k_groups(blocks: Tensor, codes: Tensor) -> Tensor:
    """Weights of eight groups of 32, codes uint8 [..., 8, 32], with scales and minima of six bits."""
    scales, minima = _scales_and_minima(blocks[..., 4:16])
    scale, minimum = _f16(blocks[..., :2]) * scales, _f16(blocks[..., 2:4]) * minima
    return _rows(codes * scale[..., None] - minimum[..., None])


def _k_nibbles(packed: Tensor) -> Tensor:
    """Four-bit numbers of 128 bytes: 32 bytes hold the groups 2 n in their lower halves and 2 n + 1 in the upper."""
    return torch.unflatten(_halves(torch.unflatten(packed, -1, (4, 32))), -1, (2, 32)).flatten(-3, -2)


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_groups(blocks, _k_nibbles(blocks[..., 16:]))


def _q5_k(blocks: Tensor) -> Tensor:
    return _k_groups(blocks, _k_nibbles(blocks[..., 48:]) | _planes(blocks[..., 16:48]) << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    """Sixteen groups of 16 with scales of eight bits. 128 numbers are four times 32: of 64 bytes, and of two bits."""
    low = _halves(torch.unflatten(blocks[..., :128], -1, (2, 64))).flatten(-2)
    codes = (low | _twos(blocks[..., 128:192]).flatten(-2) << 4).view(torch.int8) - 32
    scales = _f16(blocks[..., 208:]) * blocks[..., 192:208].view(torch.int8)
    return _rows(torch.unflatten(codes, -1, (16, 16)) * scales[..., None])


CODES: dict[str, Callable[[Tensor], Codes]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "MXFP4": _mxfp4,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_1": _q4_1,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
