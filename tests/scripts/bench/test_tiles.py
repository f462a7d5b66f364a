"""The benchmark of weights in tiles, in small; on kernels without tiles both forms are products with rows."""

from pageant import kernels
from pageant.scripts.bench.tiles import SHAPES, measure


def test_every_pair_gives_two_figures():
    outputs, inputs = SHAPES[0]
    pairs = measure(kernels.load("reference"), outputs, inputs, (1, 3), turns=1, bytes_each=1)
    assert [pair.name.split(":")[0] for pair in pairs] == ["rows, tiles", "apart, at once"] * 2
    assert all(pair.first_us > 0 and pair.second_us > 0 and pair.ratio > 0 for pair in pairs)
