"""The kernels under test, and batches of sequences laid out in scattered blocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pageant import kernels
from pageant.kernels.base import AttentionBatch, Kernels, SamplingTensors
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.levels import LEVELS, compiler_flags, levels_here
from pageant.kernels.reference import ReferenceKernels

OF_WHOLE_NUMBERS = [level for level in LEVELS if "-mavx512vnni" in compiler_flags(level)]
"""Levels that multiply quantised weights by rows of x that are rounded to 8 bits."""


def in_eight_bits(x: Tensor) -> Tensor:
    """Return what x is rounded to, float64 [rows, inputs]: each 32 numbers by the least power of two by which none is
    more than 127.
    """
    groups = F.pad(x.double(), (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    exponents = torch.frexp(groups.abs().amax(2, keepdim=True)).exponent
    scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float64), exponents - 7)
    scales = torch.where((groups / scales).round().abs().amax(2, keepdim=True) > 127, 2 * scales, scales)
    return ((groups / scales).round() * scales).flatten(1)[:, : x.shape[1]]


@pytest.fixture(scope="session", params=[name for name in kernels.BACKENDS if name != "triton"])
def backend(request: pytest.FixtureRequest) -> Kernels:
    """Each backend of a CPU in turn: what is asked of the reference is asked of all. (`triton` has a folder.)"""
    return kernels.load(request.param)


@pytest.fixture(scope="module", params=["reference", *LEVELS])
def every_level(request: pytest.FixtureRequest) -> ReferenceKernels:
    """The reference, and the C++ kernels as each instruction set that runs here has them."""
    if request.param == "reference":
        return ReferenceKernels()
    return _of_level(request.param)


@pytest.fixture(scope="session", params=LEVELS)
def leveled(request: pytest.FixtureRequest) -> CpuKernels:
    """The kernels as each instruction set that runs here has them."""
    return _of_level(request.param)


def _of_level(level: str) -> CpuKernels:
    if level not in levels_here():
        pytest.skip(f"this processor has no {level}")
    return CpuKernels(level)


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., AttentionBatch]:
    return _make_batch


@pytest.fixture(scope="session")
def make_params() -> Callable[..., SamplingTensors]:
    return _make_params


@pytest.fixture(scope="session")
def make_draws() -> Callable[..., tuple[torch.Tensor, SamplingTensors]]:
    return _make_draws


@pytest.fixture(scope="session")
def scalar_philox() -> Callable[[list[int], list[int]], list[int]]:
    """Philox4x32-10 of a counter under a key, in Python's integers."""
    return _scalar_philox


def _scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high_1, low_1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high_1 ^ c[1] ^ k[0], low_1, high_0 ^ c[3] ^ k[1], low_0]
        k = [(k[0] + 0x9E3779B9) % (1 << 32), (k[1] + 0xBB67AE85) % (1 << 32)]
    return c


def _make_batch(
    lengths: list[tuple[int, int]], block_size: int, num_blocks: int, generator: torch.Generator
) -> AttentionBatch:
    """Lay out sequences of (new tokens, context); tables are scattered, their tails nonsense."""
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables = [[order.pop() for _ in range(-(-context // block_size))] for _, context in lengths]
    width = max((len(table) for table in tables), default=0) + 3
    places = [list(range(context - new, context)) for new, context in lengths]
    slots = [
        table[place // block_size] * block_size + place % block_size
        for table, row in zip(tables, places, strict=True)
        for place in row
    ]
    nonsense = [-7, num_blocks + 100, 0]
    padded = [(table + nonsense * width)[:width] for table in tables]
    return AttentionBatch(
        query_starts=torch.tensor([0, *(new for new, _ in lengths)]).cumsum(0).int(),
        context_lengths=torch.tensor([context for _, context in lengths], dtype=torch.int32),
        block_tables=torch.tensor(padded, dtype=torch.int32).view(len(lengths), width),
        slots=torch.tensor(slots, dtype=torch.int64),
        positions=torch.tensor(list(chain(*places)), dtype=torch.int64),
        max_query_length=max((new for new, _ in lengths), default=0),
        max_context_length=max((context for _, context in lengths), default=0),
    )


def _make_params(rows: int, **values: Any) -> SamplingTensors:
    """Parameters of rows: one value for all, or one for each."""
    defaults: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 0,
        "sample": 0,
        "position": 0,
    }
    dtypes = {"top_k": torch.int32, "sample": torch.int32, "seed": torch.int64, "position": torch.int64}
    return SamplingTensors(
        **{
            name: torch.as_tensor(value, dtype=dtypes.get(name, torch.float32)).expand(rows).contiguous()
            for name, value in (defaults | values).items()
        }
    )


def _make_draws(rows: int, vocab_size: int, scale: float, seed: int) -> tuple[torch.Tensor, SamplingTensors]:
    """Logits [rows, vocab_size], a part of wider ones, and rows that are drawn in all sorts of ways."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab_size + 3, generator=generator) * scale)[:, :vocab_size]
    if seed % 3 == 0:
        logits.round_()  # ties
    if seed % 5 == 0 and vocab_size > 1:
        logits[:, 1::2] = float("-inf")  # what a grammar forbids

    def some(values: list[float]) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=generator)]

    return logits, _make_params(
        rows,
        temperature=some([0.0, 0.3, 1.0, 2.0]),
        top_k=some([0, 0, 1, 5, 40, 4000]).int(),
        top_p=some([1.0, 1.0, 0.0, 0.5, 0.95]),
        min_p=some([0.0, 0.0, 0.05, 1.0]),
        seed=torch.randint(-(1 << 62), 1 << 62, (rows,), generator=generator),
        position=torch.randint(1 << 40, (rows,), generator=generator),
        sample=torch.randint(4, (rows,), generator=generator).int(),
    )
