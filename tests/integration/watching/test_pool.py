"""`pageant pool` on a server that runs."""

from __future__ import annotations

import json

import httpx
import pytest

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.errors import PeerGone
from pageant.protocol.tiers import TierStatistics
from pageant.scripts.commands import pool


def test_pool_shows_how_the_blocks_of_a_server_stand(server, capsys):
    body = {"prompt": list(range(4, 60)), "max_tokens": 4, "ignore_eos": True}
    for _ in range(2):
        answer = httpx.post(f"{server}/v1/completions", json=body, headers={"authorization": "Bearer secret"})
        assert answer.status_code == 200
    pool.pool(server, "secret", as_json=True)
    (found,) = json.loads(capsys.readouterr().out).values()
    assert (found["num_blocks"], found["blocks_held"]) == (64, 0)
    assert found["tokens_hit"] >= 55, "the second time"
    pool.pool(server, "secret", as_json=False)
    shown = capsys.readouterr().out
    assert f"free       64 of 64 blocks, {found['blocks_cached']} of them cached" in shown
    assert "wasted     0 slots" in shown


def test_who_may_not_look_is_told_so(server):
    with pytest.raises(PeerGone, match="401"):
        pool.pool(server, None, as_json=False)


def test_tiers_and_windows_have_rows_of_their_own():
    disk = TierStatistics(
        name="disk",
        num_blocks=100,
        blocks_used=40,
        blocks_saved=50,
        blocks_restored=7,
        blocks_lost=10,
        tokens_hit=112,
    )
    statistics = PoolStatistics(
        num_blocks=8,
        blocks_free=5,
        blocks_cached=4,
        blocks_held=3,
        tokens_queried=1000,
        tokens_hit=300,
        evictions=9,
        blocks_given_back=2,
        tiers=(disk,),
    )
    rows = dict(pool.describe(statistics))
    assert rows["hits"] == "300 of 1000 tokens (30.0%), 0 by copies"
    assert rows["given back"].startswith("2 blocks")
    assert rows["disk"] == "40 of 100 blocks, 50 saved, 7 restored, 10 lost, hits 112 of 1000 tokens (11.2%)"
