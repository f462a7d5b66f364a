"""The block manager's benchmark, in small; its operations at random are tried with the block manager itself."""

from pageant.scripts.bench.blocks import measure_blocks, measure_exchange


def test_every_measurement_gives_a_figure():
    assert measure_blocks(True, prompt_tokens=64, prompts=4) > 0
    assert measure_exchange(rows=3, steps=2) > 0
