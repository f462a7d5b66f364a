"""The benchmark of weights in tiles, in small; kernels without tiles take them for rows."""

import pytest

from pageant import kernels
from pageant.kernels.quantized import Bits
from pageant.scripts.bench.kernels.tiles import SHAPES, measure


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_every_pair_gives_two_figures(bits: Bits | None) -> None:
    outputs, inputs = SHAPES[0]
    ours, gated = kernels.load("reference"), bits is None
    pairs = list(measure(ours, outputs, inputs, bits, (1, 3), turns=1, num_bytes=1, gated=gated))
    expected = ["rows, tiles", "apart, at once"] if gated else ["rows, tiles"]
    assert [pair.name.split(":")[0] for pair in pairs] == expected * 2
    assert all(pair.first_us > 0 and pair.second_us > 0 and pair.ratio > 0 for pair in pairs)
