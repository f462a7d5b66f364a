"""The benchmark of screened draws, in small."""

import torch

from pageant.kernels.cpu import CpuKernels
from pageant.scripts.bench.kernels.screening import DRAWS, ROWS, measure


def test_every_draw_and_every_number_of_rows_gives_two_figures() -> None:
    pairs = list(measure(turns=1, vocab_size=512, heads=2))
    if torch.bfloat16 not in CpuKernels().halves:
        assert not pairs
        return
    names = [pair.name for pair in pairs]
    assert len(set(names)) == len(names) == 2 * len(DRAWS) + len(ROWS)
    assert all(pair.first_us > 0 and pair.second_us > 0 for pair in pairs)
