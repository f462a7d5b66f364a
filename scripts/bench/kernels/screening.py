"""Draws by screened logits beside draws by all of them: `python -m pageant.scripts.bench.kernels.screening`.

One row goes by a head of 8 bits of a 0.6B Qwen3. No cache holds the heads; hidden states are as a norm leaves them.
First all of the logits are computed and drawn from, with the head in tiles. Then only the logits that are needed are,
with the head in halves. Products of more rows follow, with the head in tiles first. The ratio is that of medians: above
1, the second is faster. Nothing is printed where the kernels have no halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pageant.kernels.base import SamplingTensors
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.memory import Pages
from pageant.kernels.quantized import QuantizedWeight, empty_quantized
from pageant.scripts.bench.kernels.pairs import Pair, in_turn, pairs_of_command

VOCABULARY, HIDDEN = 151936, 1024
HEADS = 4  # of each kind: 1.3 GB
BF16 = torch.bfloat16
DRAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "temperature 0.7, top_k 20, top_p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "temperature 1, min_p 0.1": {"min_p": 0.1},
    "temperature 1, top_p 0.9": {"top_p": 0.9},
}
ROWS = (1, 2, 8, 16, 64)


def measure(turns: int, vocab_size: int = VOCABULARY, heads: int = HEADS) -> Iterator[Pair]:
    """Yield the pairs of each draw, and then of each number of rows."""
    ours = CpuKernels()
    if BF16 not in ours.halves:
        return
    plain, halved = (
        [_head(ours, vocab_size, in_halves) for _ in range(heads)] for in_halves in (False, True)
    )
    for scale in (1, 4):
        hidden = _hidden(ours, 1) * scale
        for name, asked in DRAWS.items():
            yield in_turn(f"{name}, hidden by {scale}", *_draws(ours, hidden, plain, halved, asked), turns)
    for rows in ROWS:
        hidden = _hidden(ours, rows)
        yield in_turn(
            f"all logits of {rows} rows", _logits(ours, hidden, plain), _logits(ours, hidden, halved), turns
        )


def _draws(
    ours: CpuKernels,
    hidden: Tensor,
    plain: list[QuantizedWeight],
    halved: list[QuantizedWeight],
    asked: dict[str, Any],
) -> tuple[Callable[[int], Tensor], Callable[[int], Tensor]]:
    params = _params(**asked)

    def screened(head: QuantizedWeight) -> Tensor:
        return ours.sample(ours.logits(hidden, head, ours.screen(hidden, head, params)), params)

    return _over(plain, lambda head: ours.sample(ours.logits(hidden, head), params)), _over(halved, screened)


def _logits(ours: CpuKernels, hidden: Tensor, heads: list[QuantizedWeight]) -> Callable[[int], Tensor]:
    return _over(heads, lambda head: ours.logits(hidden, head))


def _over(heads: list[QuantizedWeight], run: Callable[[QuantizedWeight], Tensor]) -> Callable[[int], Tensor]:
    return lambda turn: run(heads[turn % len(heads)])


def _hidden(ours: CpuKernels, rows: int) -> Tensor:
    return ours.rms_norm(torch.randn(rows, HIDDEN).to(BF16), torch.ones(HIDDEN, dtype=BF16), 1e-6)


def _head(ours: CpuKernels, vocab_size: int, in_halves: bool) -> QuantizedWeight:
    made = empty_quantized((vocab_size, HIDDEN), 8, Pages("cpu"), in_tiles=True, in_halves=in_halves)
    ours.quantize((torch.randn(vocab_size, HIDDEN) * 0.02).to(BF16), made)
    return made


def _params(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> SamplingTensors:
    return SamplingTensors(
        temperature=torch.tensor([temperature]),
        top_k=torch.tensor([top_k], dtype=torch.int32),
        top_p=torch.tensor([top_p]),
        min_p=torch.tensor([min_p]),
        seed=torch.tensor([0]),
        sample=torch.tensor([0], dtype=torch.int32),
        position=torch.tensor([0]),
    )


if __name__ == "__main__":
    pairs_of_command(__doc__, measure)
