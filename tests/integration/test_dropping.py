"""An engine that nobody has any more ends, with its processes."""

from __future__ import annotations

import gc
import os

import pytest

import pageant
from pageant import SamplingParams

SETTINGS = {"threads": 1, "num_blocks": 32, "placement": "each"}
SHORT = SamplingParams(max_tokens=3)


async def _engine(path):
    engine = pageant.Engine(path, **SETTINGS)
    await engine.start()
    await engine.complete("hello", SHORT)
    stream = engine.generate("hello", SamplingParams(max_tokens=100))
    await anext(stream)
    await stream.aclose()
    return engine


async def _llm(path):
    llm = pageant.LLM(path, progress=False, **SETTINGS)
    llm.generate("hello", SHORT)
    return llm


async def _llm_engine(path):
    engine = pageant.LLMEngine(path, **SETTINGS)
    engine.add_request("one", "hello", SHORT)
    while engine.has_unfinished_requests():
        engine.step()
    return engine


@pytest.mark.parametrize("start", [_engine, _llm, _llm_engine])
async def test_what_was_dropped_ends(checkpoint, start):
    owner = await start(checkpoint.path)
    session = owner._session
    thread, processes = (
        session._thread._thread,
        [one.pid for one in session.statistics() if one.pid != os.getpid()],
    )
    assert len(processes) > 3
    del owner
    gc.collect()
    thread.join(60)
    assert not thread.is_alive() and session._thread is None
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    session.stop()
