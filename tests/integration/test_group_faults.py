"""A member of a group fails: the group falls and rises as one, clients see a pause, and it still ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from pageant import LLM, Engine, SamplingParams
from pageant.actors.runtime.address import SUPERVISOR
from pageant.protocol.errors import PageantError
from pageant.protocol.supervision import ActorEntry, GetDirectory
from pageant.scripts.chaos.failing import FAILING, have_fail
from tests.integration.test_groups import DEMO, SMALL

PARAMS = SamplingParams(temperature=0.8, seed=11, max_tokens=24, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
STOP_SECONDS_MAX = 60.0
"""Stops take a second; other tests use the machine too."""
PROMPTS = [f"Once upon a time there were {number}" for number in range(6)]
SETTINGS = {**SMALL, "placement": "auto", "heartbeat_seconds": 0.5, "suspicion_seconds": 2.5}
CASES: dict[str, tuple[dict[str, int], list[tuple[int, str]], int]] = {
    "two ranks": ({"tensor_parallel": 2}, [(0, "stop"), (1, "raise")], 1),
    "two stages": ({"pipeline_parallel": 2}, [(0, "raise"), (1, "kill")], 0),
}
"""Options of a group, ranks that fail in turn and how, and the rank that hears first of the end."""


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    with LLM(DEMO, placement="one", **SMALL) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


async def said(engine: Engine) -> list[Any]:
    """Return the tokens that come of all prompts."""

    async def last(prompt: str) -> list[int]:
        outputs = [output async for output in engine.generate(prompt, PARAMS)]
        return outputs[-1].outputs[0].token_ids

    return await asyncio.gather(*map(last, PROMPTS))


async def members(engine: Engine) -> dict[str, ActorEntry]:
    """Return the group's entries in the directory."""
    directory = await engine.ask(SUPERVISOR, GetDirectory())
    return {one.name: one for one in directory.actors if one.name.startswith("executor/")}


@pytest.mark.parametrize("case", CASES)
async def test_a_group_whose_members_fail_rises_as_one_loses_nothing_and_ends_in_order(
    case: str,
    expected: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shape, faults, told_first = CASES[case]
    entry = {**FAILING, "options": {"faults": str(tmp_path), **shape}}
    engine = Engine(DEMO, actors={"executor": entry}, **SETTINGS)
    await engine.start()
    for rank, fault in faults:
        before = await members(engine)
        have_fail(tmp_path, rank, fault)
        assert await said(engine) == expected
        after = await members(engine)
        assert {one.incarnation for one in after.values()} == {before["executor/0"].incarnation + 1}
        assert [one.restarts for one in after.values()] == [before["executor/0"].restarts + 1, 0], "one death"
        errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
        assert errors and all(re.search(rf"executor[-/]{rank}#", error) for error in errors), (
            "the cause alone"
        )
        caplog.clear()
    capfd.readouterr()
    await stops_in_order(engine, told_first, monkeypatch)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    written = capfd.readouterr().err
    assert "ERROR" not in written and "Traceback" not in written


async def stops_in_order(engine: Engine, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop an engine under load, one rank before the others. No process and no stream outlives that."""
    pids = [node.pid for node in await engine.statistics() if node.pid != os.getpid()]
    core = engine._session._cluster._supervisor.core
    told = sorted(core.nodes_up(), key=lambda node: node != f"executor-{first}")
    monkeypatch.setattr(core, "nodes_up", lambda: told)
    streams = [engine.generate(prompt, ENDLESS) for prompt in PROMPTS]
    for stream in streams:
        await anext(stream)
    async with asyncio.timeout(STOP_SECONDS_MAX):
        await engine.close()
        for stream in streams:
            with contextlib.suppress(PageantError):  # unless it was complete
                async for _ in stream:
                    pass
    assert pids and not [pid for pid in pids if psutil.pid_exists(pid)]
