"""Functions that Triton's language has not, in float32."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["activate", "clamped_swiglu", "gate_by", "gelu", "gelu_tanh", "segment_of_tile", "silu", "tanh"]


@triton.jit
def tanh(x):
    """Return tanh(x), float32, computed by exp2: exact at both ends, within 1e-7 everywhere."""
    return 1.0 - 2.0 / (tl.exp2(x * 2.885390081777927) + 1.0)  # 2 log2(e)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """x, float32, by the activation's name."""
    if ACTIVATION == "silu":
        y = silu(x)
    elif ACTIVATION == "gelu":
        y = gelu(x)
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        y = gelu_tanh(x)
    return y


@triton.jit
def squared_relu(x):
    """Return the square of what is above zero of x, float32. NaN stays NaN."""
    above = tl.where(x < 0.0, 0.0, x)
    return above * above


@triton.jit
def clamped_swiglu(gate, up):
    """Return gpt-oss's gating of two float32 factors; see `Kernels.clamped_swiglu`. NaN stays NaN."""
    gate = tl.where(gate > 7.0, 7.0, gate)
    up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
    return gate / (1.0 + tl.exp(-1.702 * gate)) * (up + 1.0)


@triton.jit
def gate_by(gate, up, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    """Return act(gate) * up of factors in `dtype`, rounded to it where torch would."""
    if ACTIVATION == "clamped_swiglu":
        y = clamped_swiglu(gate.to(tl.float32), up.to(tl.float32)).to(dtype)
    else:
        y = activate(gate.to(tl.float32), ACTIVATION).to(dtype) * up
    return y


@triton.jit
def segment_of_tile(starts, num_segments, tile, SIZE: tl.constexpr):
    """Return (segment, number of the tile within it) of a tile.

    Segment s has rows starts[s]:starts[s+1], int32, and its first tile is starts[s] // SIZE + s. So each segment has
    room for as many tiles of SIZE rows as it needs, and no table is made. A segment's last tile may be empty.
    """
    low = 0
    high = num_segments
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(starts + middle) // SIZE + middle <= tile
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low, tile - (tl.load(starts + low) // SIZE + low)
