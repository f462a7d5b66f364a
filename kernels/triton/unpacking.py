"""Tiles of quantised weights, widened in registers.

A tile is [COLUMNS, DEPTH]: rows of a weight, in units of 64 inputs, laid out as `pageant.kernels.quantized` says. Or it
is [SLICES, COLUMNS, DEPTH], with inputs of its own for each slice. With 8 bits it is one part. With 5 or 4 bits it is
two, the lower and the upper halves of its bytes, whose inputs are 32 apart. Each group's scale is loaded once.

Converting an integer takes a slow instruction on a GPU. So bfloat16 weights are made of bytes by moving bits (`FAST`):
an integer below 128 behind the byte 0x43 is a bfloat16 that is 128 more than it, exactly, and four of them take a few
instructions. (What is too much is taken off by a product with -1 and a sum, exactly: only Hopper can subtract.) One
rounding follows, by the scale, as everywhere: integers are exact in bfloat16.

Bytes 0 and 2 of a word are two bfloat16s after one instruction, and so are bytes 1 and 3 after a shift. For 8 bits they
stay in that order, and `pair_inputs` puts the other operand's inputs in the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["UNPACK_4", "UNPACK_5", "UNPACK_8", "UNPACK_PAIRS_8", "load_tile", "pair_inputs", "unit_offsets"]

UNPACK_8 = """
{
.reg .b32 a, b, c, d, m;
mov.b32 m, 0xbf80bf80;
prmt.b32 a, $2, 0x43434343, 0x4140;
prmt.b32 b, $2, 0x43434343, 0x4342;
and.b32 c, a, 0xff80ff80;
and.b32 d, b, 0xff80ff80;
and.b32 a, a, 0xff7fff7f;
and.b32 b, b, 0xff7fff7f;
fma.rn.bf16x2 $0, c, m, a;
fma.rn.bf16x2 $1, d, m, b;
}
"""
"""Four int8 to bfloat16, in order. Of a number's byte, the lower 7 bits are a bfloat16 from 128 to 255, and the sign is
what is taken off: 128, or 256, whose bits are those of 128 with that bit set."""

UNPACK_PAIRS_8 = """
{
.reg .b32 a, b, c, d, h, m;
mov.b32 m, 0xbf80bf80;
shr.u32 h, $2, 8;
lop3.b32 a, $2, 0x007f007f, 0x43004300, 0xea;
lop3.b32 c, $2, 0x00800080, 0x43004300, 0xea;
lop3.b32 b, h, 0x007f007f, 0x43004300, 0xea;
lop3.b32 d, h, 0x00800080, 0x43004300, 0xea;
fma.rn.bf16x2 $0, c, m, a;
fma.rn.bf16x2 $1, d, m, b;
}
"""
"""The same, in the order 0, 2, 1, 3."""

PAIR_INPUTS = """
prmt.b32 $0, $2, $3, 0x5410;
prmt.b32 $1, $2, $3, 0x7632;
"""

UNPACK_4 = """
{
.reg .b32 l, h, c, m;
mov.b32 m, 0xbf80bf80;
mov.b32 c, 0x43084308;
and.b32 l, $4, 0x0f0f0f0f;
shr.u32 h, $4, 4;
and.b32 h, h, 0x0f0f0f0f;
prmt.b32 $0, l, 0x43434343, 0x4140;
prmt.b32 $1, l, 0x43434343, 0x4342;
prmt.b32 $2, h, 0x43434343, 0x4140;
prmt.b32 $3, h, 0x43434343, 0x4342;
fma.rn.bf16x2 $0, c, m, $0;
fma.rn.bf16x2 $1, c, m, $1;
fma.rn.bf16x2 $2, c, m, $2;
fma.rn.bf16x2 $3, c, m, $3;
}
"""
"""The lower and the upper halves of four bytes to bfloat16: each is 8 more than what it stands for."""

UNPACK_5 = """
{
.reg .b32 l, h, f, g, c, m;
mov.b32 m, 0xbf80bf80;
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
fma.rn.bf16x2 $0, c, m, $0;
fma.rn.bf16x2 $1, c, m, $1;
fma.rn.bf16x2 $2, c, m, $2;
fma.rn.bf16x2 $3, c, m, $3;
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
    """Inputs of x, bfloat16 [..., DEPTH], in the order of `UNPACK_PAIRS_8`."""
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
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    FAST: tl.constexpr,
    PAIRED: tl.constexpr,
    dtype: tl.constexpr,
):
    """A tile's two parts in dtype, [..., DEPTH / 2] each.

    With 8 bits, or 16 unquantised ones, they are one of [..., DEPTH], twice.

    `line` (int64 [COLUMNS, 1] or [1, COLUMNS, 1]) are rows of the weight, of PADDED inputs each. `start` is the first
    input, of a unit: one for all, or one for each slice, [SLICES, 1, 1]. Unless EVEN, the tile may reach beyond a row's
    end, and is 0 there.
    """
    UNITS: tl.constexpr = DEPTH // 64
    if BITS == 16:
        place = start + _last(tl.arange(0, DEPTH), line)
        low = _load(values + line * PADDED + place, place < PADDED, EVEN)
        high = low
    else:
        unit = start // 64 + _last(tl.arange(0, UNITS), line)
        words = scales.to(tl.pointer_type(tl.int32)) + line * (PADDED // 64) + unit
        low_scale, high_scale = _halves(_load(words, unit < PADDED // 64, EVEN))
        if BITS == 8:
            place = start + _last(tl.arange(0, DEPTH), line)
            packed = _load(values + line * PADDED + place, place < PADDED, EVEN)
            low = _scaled(_unpack_8(packed, FAST, PAIRED), tl.join(low_scale, high_scale), dtype)
            high = low
        else:
            STRIDE: tl.constexpr = 8 * BITS
            byte = _last(tl.arange(0, 32 * UNITS), line)
            lines = values + line * (PADDED // 8 * BITS) + start // 64 * STRIDE
            there = start // 64 + byte // 32 < PADDED // 64
            packed = _load(lines + (byte // 32 * STRIDE + byte % 32), there, EVEN)
            if BITS == 5:
                low_fifths = _load_fifths(lines + 32, start, line, PADDED, UNITS, EVEN)
                high_fifths = _load_fifths(lines + 36, start, line, PADDED, UNITS, EVEN)
                low, high = _unpack_5(packed, low_fifths, high_fifths, byte, FAST)
            else:
                low, high = _unpack_4(packed, FAST)
            low, high = _scaled(low, low_scale, dtype), _scaled(high, high_scale, dtype)
    return low, high


@triton.jit
def _last(numbers, like):
    """Numbers [N] along the last dimension of as many as `like` has."""
    return numbers[None, :] if len(like.shape) == 2 else numbers[None, None, :]


@triton.jit
def _load(pointers, there, EVEN: tl.constexpr):
    return tl.load(pointers) if EVEN else tl.load(pointers, mask=there, other=0)


@triton.jit
def _halves(words):
    """The two bfloat16 of each word. Scales are loaded as words, since loads of less are not asynchronous."""
    low = words.to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = (words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return low, high


@triton.jit
def _load_fifths(lines, start, line, PADDED: tl.constexpr, UNITS: tl.constexpr, EVEN: tl.constexpr):
    """The 4 bytes at `lines` and at each next unit of 40, again for each 4 of a unit's first 32: [..., 32 UNITS]."""
    byte = _last(tl.arange(0, 4 * UNITS), line)
    there = start // 64 + byte // 4 < PADDED // 64
    loaded = _load(lines + (byte // 4 * 40 + byte % 4), there, EVEN)
    fours = tl.reshape(loaded, loaded.shape[:-1] + (UNITS, 1, 4))
    eights = tl.broadcast_to(fours, loaded.shape[:-1] + (UNITS, 8, 4))
    return tl.reshape(eights, loaded.shape[:-1] + (32 * UNITS,))


@triton.jit
def _unpack_8(packed, FAST: tl.constexpr, PAIRED: tl.constexpr):
    if FAST:
        numbers = tl.inline_asm_elementwise(
            asm=_UNPACK_PAIRS_8 if PAIRED else _UNPACK_8,
            constraints="=r,=r,r",
            args=[packed],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        numbers = packed.to(tl.float32)
    return numbers


@triton.jit
def _unpack_4(packed, FAST: tl.constexpr):
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
    return low, high


@triton.jit
def _unpack_5(packed, low_fifths, high_fifths, byte, FAST: tl.constexpr):
    """`byte` [..., 32 UNITS] says which place of a unit each of the packed ones has."""
    shift = tl.broadcast_to((byte % 32 // 4).to(tl.uint8), packed.shape)
    if FAST:
        mask = (tl.full(packed.shape, 1, tl.uint8) << shift).to(tl.uint8)
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
    return low, high


@triton.jit
def _scaled(numbers, scales, dtype: tl.constexpr):
    """Numbers [..., 32 GROUPS], times the scales of their groups, as many in the same order."""
    groups = tl.reshape(numbers, scales.shape + (32,)) * tl.expand_dims(scales.to(numbers.dtype), -1)
    return tl.reshape(groups, numbers.shape).to(dtype)
