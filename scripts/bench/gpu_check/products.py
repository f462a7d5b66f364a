"""Products with weights: those of an 8B model, whole and quantised, and a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.kernels.quantized import Bits, QuantizedWeight, Weight, empty_quantized
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.limits import scaled_product
from pageant.scripts.bench.gpu_check.measuring import Bench, Case, Run, Work, bench_here, measure_cases

__all__ = ["BITS", "SHAPES", "product_cases", "run"]

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
BITS: dict[str, Bits] = {"int8": 8, "int4": 4}
_FEW = 64  # rows, up to which a product is a matter of bandwidth
_EXPERTS, _CHOSEN, _HIDDEN, _INNER = 128, 8, 2048, 768  # of Qwen3-30B-A3B


def run(recorder: Recorder, tiny: bool) -> None:
    """Measure every product case."""
    bench = bench_here(tiny=tiny)
    measure_cases(recorder, bench, product_cases(bench, kernels.load("triton", bench.device.type)))


def product_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield the cases by numbers of rows, so that those that are compared are measured beside each other."""
    for rows in (1, 64, 4096, 16, 256, 4):
        for name in SHAPES:
            for kind in ("bf16", *BITS):
                yield Case(
                    f"{kind} {name}, {rows} rows",
                    lambda kind=kind, name=name, rows=rows: _product(bench, ours, kind, name, rows),  # type: ignore[misc]
                )
        if rows in (16, 4096):
            yield Case(f"fp8 gate_up, {rows} rows", lambda rows=rows: _product_of_8_bits(bench, rows))  # type: ignore[misc]
        for kind, tokens in {64: (("bf16", 32), ("int4", 32)), 4096: (("bf16", 8192), ("bf16", 1))}.get(
            rows, ()
        ):
            yield Case(
                f"moe {kind}, {tokens} tokens",
                lambda kind=kind, tokens=tokens: _mixture(bench, ours, kind, tokens),  # type: ignore[misc]
            )


def _product(bench: Bench, ours: Kernels, kind: str, name: str, rows: int) -> Work:
    outputs, inputs = (bench.of(size, 32) for size in SHAPES[name])
    x = bench.numbers(bench.of(rows), inputs)
    few = rows <= _FEW
    first = _weight(bench, kind, (outputs, inputs))
    copies = bench.copies(first.nbytes) if few else 1
    weights = [first, *(_weight(bench, kind, (outputs, inputs)) for _ in range(copies - 1))]

    def runs_with(weight: Weight) -> Run:
        return lambda: ours.linear(x, weight)

    moved = first.nbytes + x.nbytes + len(x) * outputs * x.itemsize
    return Work(
        [runs_with(weight) for weight in weights],
        num_bytes=moved if few else None,
        flops=None if few else 2 * len(x) * outputs * inputs,
    )


def _weight(bench: Bench, kind: str, shape: tuple[int, ...]) -> Weight:
    """Return a weight of normal numbers, or one of random bits with scales that make such numbers."""
    if kind == "bf16":
        return bench.numbers(*shape)
    weight: QuantizedWeight = empty_quantized(shape, BITS[kind], bench.device)
    weight.values.random_()
    weight.scales.fill_(1 / (1 << (weight.bits - 1)))
    return weight


def _product_of_8_bits(bench: Bench, rows: int) -> Work:
    outputs, inputs = (bench.of(size, 32) for size in SHAPES["gate_up"])
    x = bench.numbers(bench.of(rows, 16), inputs)
    few = rows <= _FEW
    copies = bench.copies(outputs * inputs) if few else 1
    return Work(
        [scaled_product(x, bench.numbers(outputs, inputs)) for _ in range(copies)],
        num_bytes=outputs * inputs if few else None,
        flops=None if few else 2 * len(x) * outputs * inputs,
    )


def _mixture(bench: Bench, ours: Kernels, kind: str, tokens: int) -> Work:
    num_experts, top_k = bench.of(_EXPERTS, 4), bench.of(_CHOSEN, 2)
    hidden, inner = bench.of(_HIDDEN, 32), bench.of(_INNER, 32)
    gate_up = _weight(bench, kind, (num_experts, 2 * inner, hidden))
    down = _weight(bench, kind, (num_experts, hidden, inner))
    x = bench.numbers(bench.of(tokens), hidden)
    few = tokens <= _FEW
    # What a token chooses is drawn anew for each copy: other experts, which the caches do not hold.
    drawn = 1 - (1 - top_k / num_experts) ** len(x)
    used = drawn * (gate_up.nbytes + down.nbytes)
    copies = bench.copies(used) if few else 1
    chosen = [ours.route(bench.numbers(len(x), num_experts), top_k, True) for _ in range(copies)]

    def runs_with(weights: torch.Tensor, experts: torch.Tensor) -> Run:
        return lambda: ours.moe(x, gate_up, down, weights, experts, "silu")

    if few and bench.device.type != "meta":
        shares = [len(set(experts.flatten().tolist())) / num_experts for _, experts in chosen]
        used = sum(shares) / len(shares) * (gate_up.nbytes + down.nbytes)
    rivals: dict[str, Run] = {}
    if not few and kind == "bf16" and bench.device.type != "meta":
        rivals["grouped_mm"] = _grouped(x, gate_up, down, chosen[0])  # type: ignore[arg-type]
    return Work(
        [runs_with(*pair) for pair in chosen],
        num_bytes=used if few else None,
        flops=None if few else 2 * 3 * len(x) * top_k * hidden * inner,
        rivals=rivals,
    )


def _grouped(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, chosen: tuple[torch.Tensor, torch.Tensor]
) -> Run:
    """Return the same mixture by torch's grouped products; the sums over experts are in float32, as ours are."""
    weights, experts = chosen
    top_k = experts.shape[1]

    def run() -> torch.Tensor:
        ordered, order = experts.flatten().sort(stable=True)
        every = torch.arange(1, gate_up.shape[0] + 1, device=x.device)
        ends = torch.searchsorted(ordered, every).int()
        gate, up = F.grouped_mm(x[order // top_k], gate_up.transpose(1, 2), offs=ends).chunk(2, dim=1)
        made = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
        weighed = made.float() * weights.flatten()[order, None]
        return torch.zeros_like(x, dtype=torch.float32).index_add_(0, order // top_k, weighed).to(x.dtype)

    return run
