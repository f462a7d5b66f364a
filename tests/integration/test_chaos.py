"""The short form of `pageant chaos`: each process is killed once while 64 requests stream."""

from __future__ import annotations

from pageant.scripts.chaos.run import SETTINGS, run


async def test_no_request_and_no_token_is_lost_or_changed_whoever_dies(checkpoint):
    settings = SETTINGS | {"model": str(checkpoint.path), "num_blocks": 1280, "threads": 1}
    figures = await run(settings, minutes=0, requests=64, tokens=120, seed=0)
    assert figures["lost"] == [] and figures["changed"] == []
    everybody = {"executor", "scheduler", "blocks", "tokenizer", "detokenizer", "drafter", "grammar"}
    assert {node: row["times"] for node, row in figures["died"].items()} == dict.fromkeys(everybody, 1)
    assert figures["requests"] >= 64
