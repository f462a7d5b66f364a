"""The block manager's benchmark, in small. Its operations at random are tried in `tests/actors/blocks/test_random.py`."""

from pageant.scripts.bench.blocks import measure_blocks, measure_exchange


def test_every_measurement_gives_a_figure():
    assert measure_blocks(True, prompt_tokens=64, prompts=4) > 0
    assert measure_exchange(rows=3, steps=2) > 0
