"""Weights in tiles beside weights in rows: `python -m pageant.scripts.bench.kernels.tiles`.

For each shape of a 0.6B Qwen3's linear maps and each number of rows, a product in both forms is timed in turns, in
bfloat16 and quantised. For gates and ups, a product and then an activation are timed beside the two at once. No cache
holds the weights, and x is as a norm leaves it. The ratio is that of medians: above 1, the second is faster. Nothing is
printed where the kernels have no tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.memory import Pages
from pageant.kernels.quantized import Bits, empty_quantized
from pageant.kernels.tiled import LinearWeight, empty_tiled
from pageant.scripts.bench.kernels.pairs import Pair, in_turn, pairs_of_command

SHAPES = ((6144, 1024), (4096, 1024), (1024, 2048), (1024, 3072))
ROWS = (1, 8, 16, 64, 128, 512, 2048)
BF16 = torch.bfloat16


def measure(
    ours: Kernels,
    outputs: int,
    inputs: int,
    bits: Bits | None,
    rows: Sequence[int],
    turns: int,
    num_bytes: int,
    gated: bool,
) -> Iterator[Pair]:
    """Yield the pairs of both forms of weights of so many bytes in all, and perhaps of what is gated."""
    form = "bfloat16" if bits is None else f"int{bits}"
    count = max(1, num_bytes * 8 // ((bits or 16) * outputs * inputs))
    plain, tiled = (_weights(ours, count, (outputs, inputs), bits, in_tiles) for in_tiles in (False, True))
    for num_rows in rows:
        x = ours.rms_norm(torch.randn(num_rows, inputs).to(BF16), torch.ones(inputs, dtype=BF16), 1e-6)
        name = f"{form} {outputs} x {inputs}, {num_rows} rows"
        in_rows, in_tiles = _over(plain, x, ours.linear), _over(tiled, x, ours.linear)
        yield in_turn(f"rows, tiles: {name}", in_rows, in_tiles, turns)
        if gated:
            apart = _over(tiled, x, lambda x, weight: ours.act_and_mul(ours.linear(x, weight), "silu"))
            at_once = _over(tiled, x, lambda x, weight: ours.gated_linear(x, weight, None, "silu"))
            yield in_turn(f"apart, at once: {name}", apart, at_once, turns)


def _weights(
    ours: Kernels, count: int, shape: tuple[int, int], bits: Bits | None, in_tiles: bool
) -> list[LinearWeight]:
    pages = Pages("cpu")
    weights: list[LinearWeight] = []
    for _ in range(count):
        numbers = torch.randn(shape).to(BF16)
        if bits is not None:
            quantized = empty_quantized(shape, bits, pages, in_tiles)
            ours.quantize(numbers, quantized)
            weights.append(quantized)
        elif in_tiles:
            tiled = empty_tiled(shape, BF16, pages)
            tiled.fill(numbers)
            weights.append(tiled)
        else:
            weights.append(pages.empty(shape, BF16).copy_(numbers))
    return weights


def _over(
    weights: Sequence[LinearWeight], x: Tensor, run: Callable[[Tensor, LinearWeight], Tensor]
) -> Callable[[int], Tensor]:
    return lambda turn: run(x, weights[turn % len(weights)])


def _all(turns: int) -> Iterator[Pair]:
    ours = CpuKernels()
    forms: list[Bits | None] = [None] if BF16 in ours.tiled_dtypes else []
    if BF16 in ours.quantized_tiles:
        forms += [8, 5, 4]
    for bits, (outputs, inputs) in product(forms, SHAPES):
        gated = outputs == SHAPES[0][0] and bits in (None, 8)
        yield from measure(ours, outputs, inputs, bits, ROWS, turns, num_bytes=200_000_000, gated=gated)


if __name__ == "__main__":
    pairs_of_command(__doc__, _all)
