"""Times other tiles than today's: `--only tune`.

Candidates were chosen by compiling: on Hopper all fit into a program's shared memory and spill nothing, and some leave
room for more programs on a multiprocessor than today's. The result of a product is compared with the reference's before
it is timed. At the end, lines `best ...` name the tile with the least time over an 8B model's four products, and the
best of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.kernels.quantized import QuantizedWeight, dequantize, empty_quantized
from pageant.kernels.triton.tuning import Attention, Quantized, attention_tiles
from pageant.scripts.bench.gpu_check.attention import LLAMA, Heads, attention_work
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import Bench, Case, Run, Work, bench_here
from pageant.scripts.bench.gpu_check.products import BITS, SHAPES

__all__ = ["CANDIDATES", "PRODUCTS", "run", "tuning_cases"]

Kernel = Literal["decode", "prefill"]

CANDIDATES: dict[tuple[Kernel, int], tuple[Attention, ...]] = {
    ("decode", 128): (
        Attention(16, 64, 4, 7, False),
        Attention(16, 64, 4, 5),
        Attention(16, 64, 4, 5, False),
        Attention(16, 32, 4, 9, False),
        Attention(16, 32, 4, 7, False),
        Attention(16, 32, 2, 7, False),
        Attention(16, 64, 8, 7, False),
        Attention(16, 128, 4, 5, False),
        Attention(16, 32, 4, 9),
    ),
    ("decode", 64): (Attention(16, 128, 4, 5), Attention(16, 64, 4, 7, False), Attention(16, 64, 4, 5)),
    ("prefill", 128): (Attention(128, 128, 8, 3), Attention(128, 64, 8, 7), Attention(128, 64, 8, 3)),
}
"""Tiles to try beside today's, by kernel and head size."""

PRODUCTS: dict[int, tuple[Quantized, ...]] = {
    1: (
        Quantized(8, 16, 128, 4, 3, slices=4),
        Quantized(8, 16, 256, 4, 3, slices=4),
        Quantized(8, 16, 128, 2, 4, slices=2, programs=8),
        Quantized(8, 32, 128, 4, 3, slices=4),
        Quantized(8, 32, 256, 4, 3, slices=4),
        Quantized(8, 32, 256, 2, 4, programs=12),
        Quantized(8, 16, 128, 8, 3, slices=8, programs=2),
    ),
    16: (
        Quantized(16, 32, 256, 2, 4, programs=12),
        Quantized(16, 32, 128, 2, 5, programs=12),
        Quantized(16, 64, 128, 2, 4, programs=8),
        Quantized(16, 16, 128, 4, 3, slices=4),
        Quantized(16, 32, 256, 4, 3, slices=4),
    ),
    64: (
        Quantized(64, 64, 128, 4, 4, weights_first=False, programs=2),
        Quantized(64, 128, 128, 4, 3, weights_first=False, programs=2),
        Quantized(64, 64, 64, 4, 4, weights_first=False),
        Quantized(64, 128, 64, 4, 4, weights_first=False, programs=3),
    ),
    256: (
        Quantized(256, 128, 64, 8, 4, weights_first=False, programs=1),
        Quantized(256, 128, 64, 8, 3, weights_first=False, programs=1),
        Quantized(256, 64, 64, 8, 3, weights_first=False, programs=2),
        Quantized(128, 128, 64, 4, 3, weights_first=False, programs=2),
        Quantized(128, 128, 64, 8, 3, weights_first=False, programs=2),
    ),
}
"""Tiles of quantised products to try beside today's, by rows of x. With more than 16, no weight is first (see
`Quantized`)."""

_DECODES = {128: ((256, 1000), (64, 8000), (1, 100_000), (16, 1000), (1, 1000)), 64: ((64, 4000),)}
"""Sequences and contexts to decode, by head size."""
_COPIED_ROWS = 64  # up to which a product is a matter of bandwidth
_TILES = "pageant.kernels.triton.attention.attention_tiles"
_PRODUCT_TILES = "pageant.kernels.triton.products.quantized_tiles"
_TURNS, _TURN_SECONDS = 3, 0.006
_LEAST_SECONDS = 3.0  # that must be left for another case
_TINY_SHAPES = {"small": (48, 512)}


def run(recorder: Recorder, tiny: bool) -> None:
    """Compile all candidates in parallel, then time them beside today's."""
    from pageant.scripts.bench.gpu_check.warm import compile_in_parallel

    compile_in_parallel(recorder, tiny, "tune")
    bench = bench_here(tiny=tiny)
    ours = kernels.load("triton", bench.device.type)
    torch.manual_seed(0)
    with torch.inference_mode():
        _time_products(recorder, bench, ours)
        for case in _attention_cases(bench, ours):
            _record(recorder, bench, case)


def tuning_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield a case for each candidate: what must be compiled."""
    for rows in PRODUCTS:
        for kind in BITS:
            for name in SHAPES:
                matrices = Matrices(bench, kind, name)
                for label, tried in _variants(bench, ours, rows).items():
                    yield Case(
                        f"{kind} {name}, {rows} rows: {label}",
                        lambda matrices=matrices, tried=tried, rows=rows: matrices.work(tried, rows),  # type: ignore[misc]
                    )
    yield from _attention_cases(bench, ours)


def _record(recorder: Recorder, bench: Bench, case: Case) -> None:
    if recorder.seconds_left < _LEAST_SECONDS:
        recorder.add(case.name, error="not reached: the section's time is over")
        return
    with recorder.contain(case.name):
        work = case.prepare()
        recorder.add(case.name, us=_microseconds(bench, work), bytes=work.num_bytes, flops=work.flops)
    bench.synchronize()


def _microseconds(bench: Bench, work: Work) -> float:
    return round(bench.microseconds(work.runs, turns=_TURNS, seconds=_TURN_SECONDS), 2)


@dataclass
class Matrices:
    """A matrix of an 8B model in several copies, so that no cache holds what a product reads."""

    bench: Bench
    kind: str
    name: str
    _made: list[Any] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return _TINY_SHAPES["small"] if self.bench.tiny else SHAPES[self.name]

    def weights(self, rows: int) -> list[Any]:
        """Return the copies that a product of so many rows reads in turn."""
        if not self._made:
            self._made.append(self._make())
        copies = self.bench.copies(self._made[0].nbytes) if rows <= _COPIED_ROWS else 1
        self._made.extend(self._make() for _ in range(copies - len(self._made)))
        return self._made[:copies]

    def _make(self) -> Tensor | QuantizedWeight:
        if self.kind == "bf16":
            return self.bench.numbers(*self.shape)
        weight: QuantizedWeight = empty_quantized(self.shape, BITS[self.kind], self.bench.device)
        if weight.values.device.type != "meta":
            least, most = (-128, 128) if weight.bits == 8 else (0, 256)
            weight.values.random_(least, most)
        weight.scales.normal_().div_(1 << (weight.bits - 1))
        return weight

    def work(self, product: Product, rows: int) -> Work:
        """Return the product of so many rows with each copy."""
        x = self.bench.numbers(self.bench.of(rows, 3), self.shape[1])
        weights = self.weights(rows)

        def runs_with(weight: Any) -> Run:
            return lambda: product(x, weight)

        return Work([runs_with(weight) for weight in weights], num_bytes=weights[0].nbytes)

    def error_of(self, product: Product, rows: int) -> float:
        """Return the largest error of a product, over what rounding its result to bfloat16 may cost."""
        (weight, *_), x = self.weights(rows), self.bench.numbers(self.bench.of(rows, 3), self.shape[1])
        whole = weight if isinstance(weight, Tensor) else dequantize(weight, x.dtype)
        exact = x.float() @ whole.float().T
        allowed = exact.abs() / 128 + exact.square().mean().sqrt() / 256
        return float(((product(x, weight).float() - exact).abs() / allowed).max())


class Product:
    """A way to compute x @ weight.T: with a tile, or with what is chosen today."""

    def __init__(self, ours: Kernels, tiles: Quantized | None) -> None:
        self._ours, self._tiles = ours, tiles

    def __call__(self, x: Tensor, weight: Tensor | QuantizedWeight) -> Tensor:
        """Return the product."""
        if isinstance(weight, Tensor):
            return F.linear(x, weight)
        if self._tiles is None:
            return self._ours.linear(x, weight)
        with patch(_PRODUCT_TILES, return_value=self._tiles):
            return self._ours.linear(x, weight)


def _variants(bench: Bench, ours: Kernels, rows: int) -> dict[str, Product]:
    tried = PRODUCTS[rows]
    if bench.tiny:
        tried = Quantized(16, 16, 64, 1, 1, slices=4), Quantized(16, 16, 64, 1, 1, weights_first=rows < 64)
    return {"today": Product(ours, None), **{str(tiles): Product(ours, tiles) for tiles in tried}}


def _time_products(recorder: Recorder, bench: Bench, ours: Kernels) -> None:
    """Time every variant, and record the best ones for each number of rows."""
    shapes = _TINY_SHAPES if bench.tiny else SHAPES
    matrices = {(kind, name): Matrices(bench, kind, name) for kind in ("bf16", *BITS) for name in shapes}
    for rows in PRODUCTS:
        whole: dict[str, float] = {}
        for name in shapes:
            work = matrices["bf16", name].work(Product(ours, None), rows)
            whole[name] = _microseconds(bench, work)
            recorder.add(f"bf16 {name}, {rows} rows", us=whole[name])
        for kind in BITS:
            times: dict[str, dict[str, float]] = {}
            for label, product in _variants(bench, ours, rows).items():
                for name in shapes:
                    _time_product(
                        recorder,
                        matrices[kind, name],
                        product,
                        rows,
                        label,
                        whole[name],
                        times.setdefault(label, {}),
                    )
            _record_best(recorder, f"{kind}, {rows} rows", times, whole)


def _time_product(
    recorder: Recorder,
    matrices: Matrices,
    product: Product,
    rows: int,
    label: str,
    whole: float,
    times: dict[str, float],
) -> None:
    name, bench = f"{matrices.kind} {matrices.name}, {rows} rows: {label}", matrices.bench
    if recorder.seconds_left < _LEAST_SECONDS:
        recorder.add(name, error="not reached: the section's time is over")
        return
    with recorder.contain(name):
        error = matrices.error_of(product, rows)
        if not error <= 1:
            recorder.add(name, error=f"wrong: {error:.3g} times as far from the reference as rounding may be")
            return
        us = _microseconds(bench, matrices.work(product, rows))
        recorder.add(name, us=us, of_bf16=round(us / whole, 3), error_of_rounding=round(error, 3))
        times[matrices.name] = us
    bench.synchronize()


def _record_best(
    recorder: Recorder, what: str, times: dict[str, dict[str, float]], whole: dict[str, float]
) -> None:
    """Record the variants with the least time over all shapes, and the best of each shape."""
    total = sum(whole.values())
    complete = {label: sum(found.values()) for label, found in times.items() if len(found) == len(whole)}
    ranked = sorted(complete, key=lambda label: complete[label])
    for place, label in enumerate(ranked[:4]):
        figures = {"us": round(complete[label], 2), "of_bf16": round(complete[label] / total, 3)}
        recorder.add(f"best {what}, {place + 1}: {label}", **figures, shapes=times[label])
        print(f"{what:<16} {figures['of_bf16']:>6} {figures['us']:>8}  {label}", flush=True)
    if "today" in complete:
        print(f"{what:<16} {complete['today'] / total:>6.3f} {complete['today']:>8.2f}  today", flush=True)
    for name in whole:
        found = {label: of[name] for label, of in times.items() if name in of}
        if found:
            best = min(found, key=lambda label: found[label])
            figures = {"us": found[best], "of_bf16": round(found[best] / whole[name], 3)}
            recorder.add(f"best {what}, {name}: {best}", **figures)


def _attention_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield a case for each of attention's candidates; the tile is a line of the table in `tuning.py`."""
    for (kernel, size), candidates in CANDIDATES.items():
        if bench.device.type == "cpu":  # the interpreter's tiles are small
            tried = [Attention(16, 16, 1, 1), Attention(16, 16, 1, 1, False)]
        else:
            tried = [attention_tiles(kernel, size, bench.dtype, bench.device), *candidates]
        for count, context in _DECODES[size] if kernel == "decode" else ((2, 4096),):
            made: list[Work] = []  # the same for all tiles
            for tiles in tried:
                yield Case(
                    f"{kernel} {count} x {context}, heads of {size}: {tiles}",
                    lambda made=made, kernel=kernel, size=size, count=count, context=context, tiles=tiles: (  # type: ignore[misc]
                        _attention(bench, ours, made, kernel, size, count, context, tiles)
                    ),
                )


def _attention(
    bench: Bench,
    ours: Kernels,
    made: list[Work],
    kernel: Kernel,
    size: int,
    count: int,
    context: int,
    tiles: Attention,
) -> Work:
    of = bench.of
    if not made:
        new = 1 if kernel == "decode" else of(context, 24)
        lengths = [(new, of(context, 24))] * of(count)
        made.append(attention_work(bench, ours, lengths, Heads(LLAMA.query, LLAMA.key, size)))
    (work,) = made

    def tried(run: Run) -> Run:
        def patched() -> None:
            with patch(_TILES, return_value=tiles):
                run()

        return patched

    return Work([tried(run) for run in work.runs], work.num_bytes, work.flops)
