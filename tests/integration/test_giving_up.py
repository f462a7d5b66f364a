"""Actors that cannot be started again are given up, and whoever waits is told: with an error, never by silence."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from functools import partial

import msgspec
import pytest

import pageant
from pageant import PeerGone, SamplingParams
from pageant.actors.runtime import restarts
from pageant.protocol.errors import PageantError
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.supervision import Directory, GetDirectory

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 64}


async def directory(engine) -> Directory:
    return await engine.ask("supervisor", GetDirectory())


async def test_open_requests_end_with_what_became_of_the_executor(checkpoint, tmp_path, monkeypatch, caplog):
    impatient = partial(restarts.RestartLimits, early_deaths_max=2, delay_first=0.0, delay_max=0.0)
    monkeypatch.setattr(restarts, "RestartLimits", impatient)
    model = shutil.copytree(checkpoint.path, tmp_path / "model")
    async with pageant.Engine(model, placement="each", **SETTINGS) as engine:
        outputs = engine.generate([5, 6, 7], LONG)
        await anext(outputs)
        (model / "model.safetensors").unlink()
        pids = {node.name: node.pid for node in (await directory(engine)).nodes}
        os.kill(pids["executor"], signal.SIGKILL)
        with pytest.raises(PeerGone, match=r"executor/0 is down and will not be restarted.*safetensors"):
            async for _ in outputs:
                pass
        with pytest.raises(PeerGone, match="executor/0 is down and will not be restarted"):
            await engine.complete([5, 6, 7], LONG)
    (last,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert "executor/0 is given up after 2 early deaths in a row; the last: CheckpointError" in last


async def test_guided_requests_end_with_what_became_of_the_grammar(checkpoint, tmp_path, monkeypatch):
    impatient = partial(restarts.RestartLimits, early_deaths_max=2, delay_first=0.0, delay_max=0.0)
    monkeypatch.setattr(restarts, "RestartLimits", impatient)
    model = shutil.copytree(checkpoint.path, tmp_path / "model")
    asked = msgspec.structs.replace(LONG, structured_outputs=StructuredOutputsParams(regex="[a-z]*"))
    async with pageant.Engine(model, placement="each", max_num_seqs=1, **SETTINGS) as engine:
        running, waiting = engine.generate([5, 6, 7], asked), engine.generate([5, 6, 8], asked)
        await anext(running)
        first = asyncio.ensure_future(anext(waiting))
        while not (await engine.scheduler_statistics()).num_waiting:
            pass
        for file in model.glob("tokenizer*"):
            file.unlink()
        pids = {node.name: node.pid for node in (await directory(engine)).nodes}
        os.kill(pids["grammar"], signal.SIGKILL)
        told = "grammar actor is down and will not be restarted"
        with pytest.raises(PageantError, match=told):
            async for _ in running:
                pass
        with pytest.raises(PageantError, match=told):
            await first
        assert (await engine.complete([5, 6, 7], LONG)).finished


async def test_a_frontend_that_crashes_fails_its_requests_and_serves_again(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", **SETTINGS) as engine:
        outputs = engine.generate([5, 6, 7], LONG)
        await anext(outputs)
        frontend = engine._session.frontend
        engine._session._call(frontend._cell.crash, ValueError("told to"))
        with pytest.raises(
            PeerGone, match="frontend crashed while this request was open: ValueError: told to"
        ):
            async for _ in outputs:
                pass
        while engine._session.frontend in (None, frontend):
            pass
        assert (await engine.complete([5, 6, 7], LONG)).finished
        statistics = await engine.scheduler_statistics()
        assert sum(count for name, count in statistics.counters.items() if name.startswith("aborts")) == 1
        assert statistics.num_running == 0 == (await engine.pool_statistics()).blocks_held
