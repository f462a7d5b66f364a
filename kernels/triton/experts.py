"""A mixture of experts without a host's look at which experts were chosen.

The chosen places (token, k) are put in the order of their experts. Two products follow, each over tiles of that
order which are numbered as `segment_of_tile` has it, so that no list of tiles is made: gate and up with the
activation in one, then down. The weighted sum over a token's experts is in a fixed order: adding from many
programs at once would make it depend on their luck.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import NO_BIASES, ExpertBiases
from pageant.kernels.quantized import GROUP, QuantizedWeight, Weight
from pageant.kernels.reference import experts as reference
from pageant.kernels.triton.launching import cdiv, interpreted, next_power_of_2
from pageant.kernels.triton.mathematics import gate_by, segment_of_tile, squared_relu
from pageant.kernels.triton.tuning import product_tiles
from pageant.kernels.triton.unpacking import load_tile, unit_offsets

__all__ = [
    "choose_experts",
    "expert_down",
    "expert_gate_up",
    "moe",
    "order_places",
    "route",
    "sum_experts",
    "weigh_experts",
]

_COUNTED_MAX = 4096  # places that are put in order by counting; more are sorted
_COUNTED = 32  # places of one program


def route(logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """See `Kernels.route`."""
    tokens, num_experts = logits.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    choose_experts[(tokens,)](
        logits,
        weights,
        experts,
        logits.stride(0),
        EXPERTS=num_experts,
        EXPERTS_TILE=next_power_of_2(num_experts),
        TOP_K=top_k,
        PLACES_TILE=next_power_of_2(top_k),
        NORMALISE=normalise,
        num_warps=1,
    )
    return weights, experts


@triton.jit
def choose_experts(
    logits,
    weights,
    experts,
    stride,
    EXPERTS: tl.constexpr,
    EXPERTS_TILE: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES_TILE: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """Program (token)."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS_TILE)
    scores = tl.load(logits + token * stride + expert, mask=expert < EXPERTS, other=float("-inf")).to(
        tl.float32
    )
    masses = tl.exp(scores - tl.max(scores))
    shares = masses / tl.sum(masses)
    # Logits are ranked, not shares: those far below the top all have a share of 0. NaN comes first, as in torch.sort.
    ranks = tl.where(scores == scores, scores, float("inf"))
    left = expert < EXPERTS
    place = tl.arange(0, PLACES_TILE)
    picked = tl.zeros([PLACES_TILE], dtype=tl.float32)
    picks = tl.zeros([PLACES_TILE], dtype=tl.int32)
    for turn in tl.static_range(TOP_K):
        highest = tl.max(tl.where(left, ranks, float("-inf")))
        chosen = tl.min(tl.where(left & (ranks == highest), expert, EXPERTS))
        picked = tl.where(place == turn, tl.sum(tl.where(expert == chosen, shares, 0.0)), picked)
        picks = tl.where(place == turn, chosen, picks)
        left = left & (expert != chosen)
    if NORMALISE:
        picked /= tl.sum(picked)
    tl.store(weights + token * TOP_K + place, picked, mask=place < TOP_K)
    tl.store(experts + token * TOP_K + place, picks.to(tl.int64), mask=place < TOP_K)


def moe(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    *,
    biases: ExpertBiases = NO_BIASES,
    unrounded: bool = False,
) -> Tensor:
    """See `Kernels.moe`. Parts of sums are the reference's."""
    if unrounded:
        return reference.moe(
            x, gate_up, down, weights, experts, activation, biases=biases, unrounded=unrounded
        )
    tokens, hidden = x.shape
    num_experts, _, inner = down.shape
    top_k = experts.shape[1]
    places = tokens * top_k
    assert x.stride(1) == 1
    first, second = _weight(gate_up), _weight(down)
    order, starts = _order(experts.flatten(), num_experts)
    tiles = product_tiles(cdiv(places, num_experts), x.dtype, x.device)
    # Quantised weights are read in units of 64 inputs.
    depth = tiles.depth if first.bits == second.bits == 16 else max(64, tiles.depth)
    # No more experts can have been chosen than there are places.
    row_tiles = places // tiles.rows + num_experts
    shape = {
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "DEPTH": depth,
        "FAST": x.dtype == torch.bfloat16 and not interpreted(x.device),
        "PRECISION": "tf32x3" if x.dtype == torch.float32 else "ieee",
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    middle = torch.empty((places, inner), dtype=x.dtype, device=x.device)
    expert_gate_up[(row_tiles, cdiv(inner, tiles.columns))](
        x,
        *first.tensors,
        biases.gate_up,
        middle,
        order,
        starts,
        x.stride(0),
        EXPERTS=num_experts,
        TOP_K=top_k,
        HIDDEN=hidden,
        INNER=inner,
        ACTIVATION=activation,
        GATED=activation != "relu2",
        BIASED=biases.gate_up is not None,
        PADDED=first.padded,
        BITS=first.bits,
        EVEN=hidden % depth == 0,
        **shape,
    )
    made = torch.empty((places, hidden), dtype=x.dtype, device=x.device)
    expert_down[(row_tiles, cdiv(hidden, tiles.columns))](
        middle,
        *second.tensors,
        biases.down,
        made,
        order,
        starts,
        EXPERTS=num_experts,
        HIDDEN=hidden,
        INNER=inner,
        BIASED=biases.down is not None,
        PADDED=second.padded,
        BITS=second.bits,
        EVEN=inner % depth == 0,
        **shape,
    )
    return weigh_experts(made.view(tokens, top_k, hidden), weights)


def weigh_experts(made: Tensor, weights: Tensor) -> Tensor:
    """See `Kernels.weigh_experts`."""
    tokens, top_k, hidden = made.shape
    output = torch.empty((tokens, hidden), dtype=made.dtype, device=made.device)
    columns = min(1024, next_power_of_2(hidden))
    sum_experts[(tokens, cdiv(hidden, columns))](
        made, weights, output, HIDDEN=hidden, TOP_K=top_k, COLUMNS=columns, num_warps=max(1, columns // 256)
    )
    return output


class _Weight(NamedTuple):
    """A stack of matrices as `load_tile` takes it."""

    tensors: tuple[Tensor, Tensor | None]
    padded: int
    bits: int


def _weight(weight: Weight) -> _Weight:
    if isinstance(weight, QuantizedWeight):
        return _Weight((weight.values, weight.scales), weight.scales.shape[-1] * GROUP, weight.bits)
    assert weight.is_contiguous()
    return _Weight((weight, None), weight.shape[-1], 16)


def _order(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Return (places by expert, int32 [P]; where each expert's begin, int32 [E + 1])."""
    places = experts.shape[0]
    if places > _COUNTED_MAX:
        ordered, order = experts.sort(stable=True)
        every = torch.arange(num_experts + 1, device=experts.device)
        return order.int(), torch.searchsorted(ordered, every).int()
    order = torch.empty(places, dtype=torch.int32, device=experts.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=experts.device)
    order_places[(cdiv(places, _COUNTED) + cdiv(num_experts + 1, _COUNTED),)](
        experts,
        order,
        starts,
        places,
        EXPERTS=num_experts,
        COUNTED=_COUNTED,
        num_warps=4,
    )
    return order, starts


@triton.jit(do_not_specialize=["places"])
def order_places(experts, order, starts, places, EXPERTS: tl.constexpr, COUNTED: tl.constexpr):
    """Program (some places), then (some experts): where each belongs is the number of those before it."""
    STRIDE: tl.constexpr = 128
    of_places = tl.cdiv(places, COUNTED)
    program = tl.program_id(0)
    mine = program * COUNTED + tl.arange(0, COUNTED)
    there = mine < places
    expert = tl.load(experts + mine, mask=there, other=0).to(tl.int32)
    if program >= of_places:
        expert = mine - of_places * COUNTED
        there = expert <= EXPERTS
    before = tl.zeros([COUNTED], dtype=tl.int32)
    for start in range(0, places, STRIDE):
        other = start + tl.arange(0, STRIDE)
        theirs = tl.load(experts + other, mask=other < places, other=EXPERTS + 1).to(tl.int32)
        earlier = theirs[None, :] < expert[:, None]
        if program < of_places:
            earlier = earlier | ((theirs[None, :] == expert[:, None]) & (other[None, :] < mine[:, None]))
        before += tl.sum(earlier.to(tl.int32), 1)
    if program < of_places:
        tl.store(order + before, mine, mask=there)
    else:
        tl.store(starts + expert, before, mask=there)


@triton.jit
def expert_gate_up(
    x,
    values,
    scales,
    biases,
    middle,
    order,
    starts,
    stride,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    PADDED: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of places, columns): act(x @ gate.T) * (x @ up.T), in the places' order.

    Where experts are not `GATED`, there is no `up`, and it is act(x @ gate.T).
    """
    expert, number = segment_of_tile(starts, EXPERTS, tl.program_id(0), ROWS)
    row = tl.load(starts + expert) + number * ROWS + tl.arange(0, ROWS)
    stop = tl.load(starts + expert + 1)
    if tl.load(starts + expert) + number * ROWS >= stop:
        return
    there = row < stop
    token = tl.load(order + row, mask=there, other=0) // TOP_K
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lines = x + token.to(tl.int64)[:, None] * stride
    gates = tl.cast(expert, tl.int64) * ((1 + GATED) * INNER) + tl.minimum(column, INNER - 1)
    dtype: tl.constexpr = middle.dtype.element_ty
    gate = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    up = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    offset = unit_offsets(BITS, DEPTH)
    for start in range(0, HIDDEN, DEPTH):
        depth = start + offset
        gate_low, gate_high = load_tile(
            values, scales, gates[:, None], start, PADDED, BITS, DEPTH, EVEN, FAST, False, dtype
        )
        if GATED:
            up_low, up_high = load_tile(
                values, scales, (gates + INNER)[:, None], start, PADDED, BITS, DEPTH, EVEN, FAST, False, dtype
            )
        left = tl.load(lines + depth[None, :], mask=there[:, None] & (depth[None, :] < HIDDEN), other=0.0)
        gate = tl.dot(left, tl.trans(gate_low), gate, input_precision=PRECISION)
        if GATED:
            up = tl.dot(left, tl.trans(up_low), up, input_precision=PRECISION)
        if BITS < 8:
            depth += 32
            left = tl.load(lines + depth[None, :], mask=there[:, None] & (depth[None, :] < HIDDEN), other=0.0)
            gate = tl.dot(left, tl.trans(gate_high), gate, input_precision=PRECISION)
            if GATED:
                up = tl.dot(left, tl.trans(up_high), up, input_precision=PRECISION)
    if BIASED:
        gate += tl.load(biases + gates).to(tl.float32)[None, :]
        if GATED:
            up += tl.load(biases + gates + INNER).to(tl.float32)[None, :]
    if GATED:
        acted = gate_by(gate.to(dtype), up.to(dtype), ACTIVATION, dtype)
    else:
        tl.static_assert(ACTIVATION == "relu2")
        acted = squared_relu(gate.to(dtype).to(tl.float32)).to(dtype)
    tl.store(
        middle + row.to(tl.int64)[:, None] * INNER + column[None, :],
        acted,
        mask=there[:, None] & (column[None, :] < INNER),
    )


@triton.jit
def expert_down(
    middle,
    values,
    scales,
    biases,
    made,
    order,
    starts,
    EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    BIASED: tl.constexpr,
    PADDED: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of places, columns): each place's line of middle @ down.T, put back where it belongs."""
    expert, number = segment_of_tile(starts, EXPERTS, tl.program_id(0), ROWS)
    row = tl.load(starts + expert) + number * ROWS + tl.arange(0, ROWS)
    stop = tl.load(starts + expert + 1)
    if tl.load(starts + expert) + number * ROWS >= stop:
        return
    there = row < stop
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lines = middle + row.to(tl.int64)[:, None] * INNER
    outputs = tl.cast(expert, tl.int64) * HIDDEN + tl.minimum(column, HIDDEN - 1)
    dtype: tl.constexpr = made.dtype.element_ty
    sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    offset = unit_offsets(BITS, DEPTH)
    for start in range(0, INNER, DEPTH):
        depth = start + offset
        low, high = load_tile(
            values, scales, outputs[:, None], start, PADDED, BITS, DEPTH, EVEN, FAST, False, dtype
        )
        left = tl.load(lines + depth[None, :], mask=there[:, None] & (depth[None, :] < INNER), other=0.0)
        sums = tl.dot(left, tl.trans(low), sums, input_precision=PRECISION)
        if BITS < 8:
            depth += 32
            left = tl.load(lines + depth[None, :], mask=there[:, None] & (depth[None, :] < INNER), other=0.0)
            sums = tl.dot(left, tl.trans(high), sums, input_precision=PRECISION)
    if BIASED:
        sums += tl.load(biases + outputs).to(tl.float32)[None, :]
    place = tl.load(order + row, mask=there, other=0)
    tl.store(
        made + place.to(tl.int64)[:, None] * HIDDEN + column[None, :],
        sums.to(dtype),
        mask=there[:, None] & (column[None, :] < HIDDEN),
    )


@triton.jit
def sum_experts(made, weights, output, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (token, columns): the weighted sum over its experts, in float32."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < HIDDEN
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for place in tl.static_range(TOP_K):
        line = token * TOP_K + place
        values = tl.load(made + line * HIDDEN + column, mask=there, other=0.0).to(tl.float32)
        total += values * tl.load(weights + line)
    tl.store(output + token * HIDDEN + column, total.to(output.dtype.element_ty), mask=there)
