"""Hostile sources beside ordinary requests."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import pageant
from pageant.protocol.errors import BadRequest
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.chaos.poison import bars_missed, run
from pageant.scripts.chaos.sources import NUM_SOURCES, hostile_sources

DEMO = Path(pageant.__file__).parent / "models" / "demo"
CALM = {
    **{"ordinary_failed": 0, "longest_pause": 0.1, "executor_restarts": 0, "other_restarts": 0},
    "unhealthy": 0,
}


def test_no_two_sources_are_alike_and_each_has_the_form_of_one():
    sources = list(itertools.islice(hostile_sources(), 2 * NUM_SOURCES))
    assert len({str(fields) for _, fields in sources}) == len(sources)
    formed = 0
    for _, fields in sources:
        try:
            StructuredOutputsParams.of(fields)
            formed += 1
        except BadRequest:
            pass  # refused for its size, before anybody compiles it
    assert formed > 0.9 * len(sources)


@pytest.mark.parametrize("figure", CALM)
def test_each_bar_can_be_missed(figure):
    assert bars_missed(CALM) == []
    assert len(bars_missed(CALM | {figure: 2})) == 1


async def test_hostile_sources_cost_others_nothing_but_time():
    actors = {"http": {"options": {"port": 0}}, "grammar": {"options": {"compile_seconds_max": 1.0}}}
    settings = {"model": str(DEMO), "placement": "one", "kv_cache_memory": "64MiB", "actors": actors}
    figures = await run(settings, requests=NUM_SOURCES, seconds=0.0)
    assert sum(figures["outcomes"].values()) == NUM_SOURCES
    assert figures["outcomes"]["refused"] > NUM_SOURCES // 3
    assert [one for one in figures["outcomes"] if one.startswith("failed")] == []
    assert [bar for bar in bars_missed(figures) if "paused" not in bar] == [], figures["failures"]
