"""The block manager's benchmark, in small."""

import pytest

from pageant.actors.blocks.pool import BlockPool
from pageant.scripts.bench.blocks import measure_blocks, measure_exchange, run_random


def test_operations_at_random_lose_no_block():
    assert run_random(20_000) > 20_000, "tokens were found in the cache"


def test_a_lost_block_is_noticed(monkeypatch):
    free = BlockPool.free
    monkeypatch.setattr(BlockPool, "free", lambda self, blocks: free(self, blocks[:50]))
    with pytest.raises(AssertionError, match=r"references, 0 sequences|blocks were lost"):
        run_random(20_000, block_size=1)


def test_every_measurement_gives_a_figure():
    assert measure_blocks(True, prompt_tokens=64, prompts=4) > 0
    assert measure_exchange(rows=3, steps=2) > 0
