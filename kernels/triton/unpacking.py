"""Tiles of quantised weights, widened in registers.

A tile is [COLUMNS, DEPTH]: rows of a weight, in units of 64 inputs, laid out as `pageant.kernels.quantized` says. With
8 bits it is one part. With 5 or 4 bits it is two, the lower and the upper halves of its bytes, whose inputs are 32
apart. Each group's scale is loaded once.

Converting an integer takes a slow instruction on a GPU. So bfloat16 weights are made of bytes by moving bits (`FAST`):
an integer below 128 behind the byte 0x43 is a bfloat16 that is 128 more than it, exactly, and four of them take a few
instructions. One rounding follows, by the scale, as everywhere: integers are exact in bfloat16.

Bytes 0 and 2 of a word are two bfloat16s after one instruction, and so are bytes 1 and 3 after a shift. For 8 bits they
stay in that order, and `pair_inputs` puts the other operand's inputs in the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["UNPACK_4", "UNPACK_5", "UNPACK_8", "UNPACK_PAIRS_8", "load_tile", "pair_inputs", "unit_offsets"]

UNPACK_8 = """
{
.reg .b32 a, b, c, d;
prmt.b32 a, $2, 0x43434343, 0x4140;
prmt.b32 b, $2, 0x43434343, 0x4342;
and.b32 c, a, 0xff80ff80;
and.b32 d, b, 0xff80ff80;
and.b32 a, a, 0xff7fff7f;
and.b32 b, b, 0xff7fff7f;
sub.bf16x2 $0, a, c;
sub.bf16x2 $1, b, d;
}
"""
"""Four int8 to bfloat16, in order. Of a number's byte, the lower 7 bits are a bfloat16 from 128 to 255, and the sign is
what is taken off: 128, or 256, whose bits are those of 128 with that bit set."""

UNPACK_PAIRS_8 = """
{
.reg .b32 a, b, c, d, h;
shr.u32 h, $2, 8;
lop3.b32 a, $2, 0x007f007f, 0x43004300, 0xea;
lop3.b32 c, $2, 0x00800080, 0x43004300, 0xea;
lop3.b32 b, h, 0x007f007f, 0x43004300, 0xea;
lop3.b32 d, h, 0x00800080, 0x43004300, 0xea;
sub.bf16x2 $0, a, c;
sub.bf16x2 $1, b, d;
}
"""
"""The same, in the order 0, 2, 1, 3."""

PAIR_INPUTS = """
prmt.b32 $0, $2, $3, 0x5410;
prmt.b32 $1, $2, $3, 0x7632;
"""

UNPACK_4 = """
{
.reg .b32 l, h, c;
mov.b32 c, 0x43084308;
and.b32 l, $4, 0x0f0f0f0f;
shr.u32 h, $4, 4;
and.b32 h, h, 0x0f0f0f0f;
prmt.b32 $0, l, 0x43434343, 0x4140;
prmt.b32 $1, l, 0x43434343, 0x4342;
prmt.b32 $2, h, 0x43434343, 0x4140;
prmt.b32 $3, h, 0x43434343, 0x4342;
sub.bf16x2 $0, $0, c;
sub.bf16x2 $1, $1, c;
sub.bf16x2 $2, $2, c;
sub.bf16x2 $3, $3, c;
}
"""
"""The lower and the upper halves of four bytes to bfloat16: each is 8 more than what it stands for."""

UNPACK_5 = """
{
.reg .b32 l, h, f, g, c;
mov.b32 c, 0x43104310;
and.b32 f, $5, $7;
and.b32 g, $6, $7;
add.u32 f, f, 0x7f7f7f7f;
add.u32 g, g, 0x7f7f7f7f;
shr.u32 f, f, 3;
shr.u32 g, g, 3;
and.b32 f, f, 0x10101010;
and.b32 g, g, 0x10101010;
lop3.b32 l, $4, 0x0f0f0f0f, f, 0xea;
shr.u32 h, $4, 4;
lop3.b32 h, h, 0x0f0f0f0f, g, 0xea;
prmt.b32 $0, l, 0x43434343, 0x4140;
prmt.b32 $1, l, 0x43434343, 0x4342;
prmt.b32 $2, h, 0x43434343, 0x4140;
prmt.b32 $3, h, 0x43434343, 0x4342;
sub.bf16x2 $0, $0, c;
sub.bf16x2 $1, $1, c;
sub.bf16x2 $2, $2, c;
sub.bf16x2 $3, $3, c;
}
"""
"""The same with a fifth bit each, of the bytes of $5 and $6 under the masks of $7: each is 16 more than what it stands
for. Every byte has a mask of its own, since the four that a thread packs need not be neighbours: in the layout of a
matrix instruction's operand they are not. A byte under its mask is 0, or its upper bit is set after 127 is added."""

_UNPACK_8, _UNPACK_PAIRS_8 = tl.constexpr(UNPACK_8), tl.constexpr(UNPACK_PAIRS_8)
_UNPACK_4, _UNPACK_5 = tl.constexpr(UNPACK_4), tl.constexpr(UNPACK_5)
_PAIR_INPUTS = tl.constexpr(PAIR_INPUTS)


@triton.jit
def unit_offsets(BITS: tl.constexpr, DEPTH: tl.constexpr):
    """Inputs of a tile's first part, by its columns. Those of a second part are 32 more."""
    if BITS >= 8:
        offsets = tl.arange(0, DEPTH)
    else:
        byte = tl.arange(0, DEPTH // 2)
        offsets = byte // 32 * 64 + byte % 32
    return offsets


@triton.jit
def pair_inputs(x):
    """Inputs of x, bfloat16 [ROWS, DEPTH], in the order of `UNPACK_PAIRS_8`."""
    return tl.inline_asm_elementwise(
        asm=_PAIR_INPUTS, constraints="=r,=r,r,r", args=[x], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def load_tile(
    values,
    scales,
    line,
    start,
    PADDED: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    FAST: tl.constexpr,
    PAIRED: tl.constexpr,
    dtype: tl.constexpr,
):
    """A tile's two parts in dtype, [COLUMNS, DEPTH / 2] each; with 8 bits, or 16 unquantised ones, one of
    [COLUMNS, DEPTH], twice.

    `line` (int64 [COLUMNS]) are rows of the weight, of PADDED inputs each, and `start` is the first input of a unit.
    Unless EVEN, the tile may reach beyond a row's end, and is 0 there.
    """
    if BITS == 16:
        place = start + tl.arange(0, DEPTH)
        low = _load(values + line[:, None] * PADDED + place[None, :], place < PADDED, EVEN)
        high = low
    elif BITS == 8:
        GROUPS: tl.constexpr = DEPTH // 32
        place = start + tl.arange(0, DEPTH)
        group = start // 32 + tl.arange(0, GROUPS)
        packed = _load(values + line[:, None] * PADDED + place[None, :], place < PADDED, EVEN)
        scale = _load(scales + line[:, None] * (PADDED // 32) + group[None, :], group < PADDED // 32, EVEN)
        if FAST:
            number = tl.inline_asm_elementwise(
                asm=_UNPACK_PAIRS_8 if PAIRED else _UNPACK_8,
                constraints="=r,=r,r",
                args=[packed],
                dtype=tl.bfloat16,
                is_pure=True,
                pack=4,
            )
        else:
            number = packed.to(tl.float32)
        low = _scaled(number, scale, COLUMNS, GROUPS, dtype)
        high = low
    else:
        UNITS: tl.constexpr = DEPTH // 64
        BYTES: tl.constexpr = 32 * UNITS
        STRIDE: tl.constexpr = 8 * BITS
        byte = tl.arange(0, BYTES)
        units = start // 64 + tl.arange(0, UNITS)
        of_byte = start // 64 + byte // 32
        there = of_byte < PADDED // 64
        lines = values + line[:, None] * (PADDED // 8 * BITS)
        packed = _load(lines + (of_byte * STRIDE + byte % 32)[None, :], there, EVEN)
        group = scales + line[:, None] * (PADDED // 32) + (2 * units)[None, :]
        low_scale = _load(group, units < PADDED // 64, EVEN)
        high_scale = _load(group + 1, units < PADDED // 64, EVEN)
        if BITS == 5:
            low_fifths = _load_fifths(lines, units, 32, PADDED, COLUMNS, UNITS, EVEN)
            high_fifths = _load_fifths(lines, units, 36, PADDED, COLUMNS, UNITS, EVEN)
            shift = (byte % 32 // 4).to(tl.uint8)[None, :] + tl.zeros([COLUMNS, BYTES], dtype=tl.uint8)
            if FAST:
                mask = (tl.full([COLUMNS, BYTES], 1, tl.uint8) << shift).to(tl.uint8)
                low, high = tl.inline_asm_elementwise(
                    asm=_UNPACK_5,
                    constraints="=r,=r,=r,=r,r,r,r,r",
                    args=[packed, low_fifths, high_fifths, mask],
                    dtype=(tl.bfloat16, tl.bfloat16),
                    is_pure=True,
                    pack=4,
                )
            else:
                low = ((packed & 15) | (((low_fifths >> shift) & 1) << 4)).to(tl.float32) - 16
                high = ((packed >> 4) | (((high_fifths >> shift) & 1) << 4)).to(tl.float32) - 16
        else:
            if FAST:
                low, high = tl.inline_asm_elementwise(
                    asm=_UNPACK_4,
                    constraints="=r,=r,=r,=r,r",
                    args=[packed],
                    dtype=(tl.bfloat16, tl.bfloat16),
                    is_pure=True,
                    pack=4,
                )
            else:
                low, high = (packed & 15).to(tl.float32) - 8, (packed >> 4).to(tl.float32) - 8
        low = _scaled(low, low_scale, COLUMNS, UNITS, dtype)
        high = _scaled(high, high_scale, COLUMNS, UNITS, dtype)
    return low, high


@triton.jit
def _load_fifths(
    lines,
    units,
    offset: tl.constexpr,
    PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNITS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The 4 bytes at an offset of each unit of 40, again for each 4 of its first 32: [COLUMNS, 32 UNITS]."""
    place = (units * 40 + offset)[:, None] + tl.arange(0, 4)[None, :]
    there = tl.reshape(tl.broadcast_to((units < PADDED // 64)[:, None], [UNITS, 4]), [4 * UNITS])
    loaded = _load(lines + tl.reshape(place, [4 * UNITS])[None, :], there, EVEN)
    fours = tl.broadcast_to(tl.reshape(loaded, [COLUMNS, UNITS, 1, 4]), [COLUMNS, UNITS, 8, 4])
    return tl.reshape(fours, [COLUMNS, 32 * UNITS])


@triton.jit
def _load(pointers, there, EVEN: tl.constexpr):
    return tl.load(pointers) if EVEN else tl.load(pointers, mask=there[None, :], other=0)


@triton.jit
def _scaled(numbers, scales, COLUMNS: tl.constexpr, GROUPS: tl.constexpr, dtype: tl.constexpr):
    """Numbers [COLUMNS, 32 GROUPS], times the scales of their groups."""
    groups = tl.reshape(numbers, [COLUMNS, GROUPS, 32]) * scales.to(numbers.dtype)[:, :, None]
    return tl.reshape(groups, [COLUMNS, 32 * GROUPS]).to(dtype)
