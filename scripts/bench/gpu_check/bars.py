"""The bars that a session is held against: ratios to what the same device did in the same session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pageant.scripts.bench.gpu_check.figures import Figures, worst

__all__ = ["BARS", "Bar"]

PRODUCTS = ("qkv", "o", "gate_up", "down")
"""The products of a layer of an 8B model."""
_FEW, _MORE = (1, 4, 16), (64, 256)  # rows


@dataclass(frozen=True)
class Bar:
    """A figure that must reach `must` and would be `good`; `at_most` where smaller is better."""

    name: str
    found: Callable[[Figures], float | None]
    must: float | None
    good: float | None
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Tell whether a value is where it must be. A bar without `must` is held against `good`."""
        least = self.good if self.must is None else self.must
        assert least is not None, self.name
        return value <= least if self.at_most else value >= least


def tests_passed(figures: Figures) -> float | None:
    """Return the share of the tests that passed."""
    passed, failed = figures.tests()
    return passed / (passed + failed) if passed + failed else None


def quantized_over_bf16(bits: str, rows: Iterable[int]) -> Callable[[Figures], float | None]:
    """Return how the four products' time compares with bfloat16's, at the worst of the numbers of rows."""

    def found(figures: Figures) -> float | None:
        def ratio(count: int) -> float | None:
            ours, theirs = (
                figures.total("products", [f"{kind} {name}, {count} rows" for name in PRODUCTS])
                for kind in (bits, "bf16")
            )
            return ours / theirs if ours is not None and theirs else None

        return worst(map(ratio, rows), at_most=True)

    return found


def after_ready(figures: Figures) -> float | None:
    """Return the kernels compiled and graphs captured while the engine served."""
    counts = [figures.figure("engine", "after ready", name) for name in ("compiles", "captures")]
    return None if None in counts else sum(count for count in counts if count is not None)


def bandwidth(section: str, *cases: str, time: str = "us") -> Callable[[Figures], float | None]:
    """Return the share of the bandwidth of a copy or a read, of the worst of some cases."""
    return lambda figures: worst(figures.of_bandwidth(section, case, time) for case in cases)


def matrix(section: str, case: str, time: str = "us") -> Callable[[Figures], float | None]:
    """Return the share of the large product's rate."""
    return lambda figures: figures.of_matrix(section, case, time)


def rival(section: str, case: str, name: str) -> Callable[[Figures], float | None]:
    """Return another implementation's time over ours."""
    return lambda figures: figures.of_rival(section, case, name)


def ratio(
    section: str, case: str, other: str, name: str, of_other: str | None = None
) -> Callable[[Figures], float | None]:
    """Return a figure of one case over that of another."""
    return lambda figures: figures.over(section, case, other, name, of_other)


def chunk_of_flash(figures: Figures) -> float | None:
    """Return the rate of a mixed step's attention over that of flash on a prefill."""
    chunk = "chunk of 2048 after 6144, 32 decodes"
    return figures.of_rivals_rate("attention", chunk, "prefill 1 x 8192", "flash")


def microseconds(section: str, case: str, name: str = "us") -> Callable[[Figures], float | None]:
    """Return a time of a case."""
    return lambda figures: figures.figure(section, case, name)


BARS = (
    Bar("tests that pass", tests_passed, 1.0, None),
    Bar("compiles and captures after ready", after_ready, 0, None, at_most=True),
    Bar("decode attention 64 x 8000, of bandwidth", bandwidth("attention", "decode 64 x 8000"), 0.80, 0.90),
    Bar("decode attention 256 x 1000, of bandwidth", bandwidth("attention", "decode 256 x 1000"), 0.70, 0.80),
    Bar("decode attention 1 x 100k, of bandwidth", bandwidth("attention", "decode 1 x 100000"), 0.70, 0.80),
    Bar("prefill attention 1 x 8192, of flash", rival("attention", "prefill 1 x 8192", "flash"), 0.80, None),
    Bar("prefill attention 1 x 8192, of cuDNN", rival("attention", "prefill 1 x 8192", "cudnn"), 0.50, 0.70),
    Bar("a chunk of 2048 after 6144 and 32 decodes, of flash's rate", chunk_of_flash, 0.70, None),
    Bar(
        "linear bf16, 1 and 64 rows, of bandwidth",
        bandwidth("products", "bf16 gate_up, 1 rows", "bf16 gate_up, 64 rows"),
        0.80,
        0.88,
    ),
    Bar("linear bf16, 4096 rows, of matrix", matrix("products", "bf16 gate_up, 4096 rows"), 0.90, None),
    Bar(
        "int8 linear, 1-16 rows, time over bf16", quantized_over_bf16("int8", _FEW), 0.65, 0.55, at_most=True
    ),
    Bar(
        "int4 linear, 1-16 rows, time over bf16", quantized_over_bf16("int4", _FEW), 0.45, 0.32, at_most=True
    ),
    Bar(
        "int8 linear, 64-256 rows, time over bf16", quantized_over_bf16("int8", _MORE), 1.0, 0.7, at_most=True
    ),
    Bar(
        "int4 linear, 64-256 rows, time over bf16", quantized_over_bf16("int4", _MORE), 1.0, 0.6, at_most=True
    ),
    Bar(
        "norm, silu and rope of 8192 rows, of bandwidth",
        bandwidth("rows", "add_rms_norm", "silu_and_mul", "rope_and_write_kv"),
        0.80,
        0.90,
    ),
    Bar("MoE, 32 tokens, of bandwidth", bandwidth("products", "moe bf16, 32 tokens"), 0.65, 0.80),
    Bar("MoE, 8192 tokens, of matrix", matrix("products", "moe bf16, 8192 tokens"), 0.40, None),
    Bar(
        "MoE, 8192 tokens, of grouped_mm", rival("products", "moe bf16, 8192 tokens", "grouped_mm"), None, 1.0
    ),
    Bar("sampling 64 rows, greedy, us", microseconds("sampling", "greedy, 64 rows"), 40, 20, at_most=True),
    Bar(
        "sampling 64 rows, temperature, us",
        microseconds("sampling", "temperature, 64 rows"),
        80,
        50,
        at_most=True,
    ),
    Bar(
        "sampling 64 rows, top_k and top_p, us",
        microseconds("sampling", "top_k and top_p, 64 rows"),
        150,
        60,
        at_most=True,
    ),
    Bar(
        "8B decode, batch 1, wall, of bandwidth",
        bandwidth("shape8b", "decode 1 x 1000", time="wall_us"),
        0.78,
        0.85,
    ),
    Bar(
        "8B decode, batch 64 x 1000, wall, of bandwidth",
        bandwidth("shape8b", "decode 64 x 1000", time="wall_us"),
        0.72,
        0.80,
    ),
    Bar("8B prefill of 4096, of matrix", matrix("shape8b", "prefill 4096", time="wall_us"), 0.55, 0.65),
    Bar(
        "verification of 16 x 5, wall over decode of 16",
        ratio("shape8b", "verify 16 x 5", "decode 16 x 1000", "wall_us"),
        1.25,
        1.1,
        at_most=True,
    ),
    Bar(
        "host time of a graph step of 64 rows, us",
        microseconds("shape8b", "decode 64 x 1000", "host_us"),
        300,
        200,
        at_most=True,
    ),
    Bar(
        "0.6B shape, batch 1, wall over device time of a step",
        ratio("engine", "ours, batch 1", "device step, batch 1", "step_us", "device_us"),
        1.5,
        1.15,
        at_most=True,
    ),
    Bar(
        "0.6B shape, batch 1, tokens/s over transformers (eager)",
        ratio("engine", "ours, batch 1", "transformers, batch 1", "tokens_per_second"),
        4,
        8,
    ),
    Bar(
        "0.6B shape, batch 16, tokens/s over transformers (eager)",
        ratio("engine", "ours, batch 16", "transformers, batch 16", "tokens_per_second"),
        4,
        8,
    ),
)
