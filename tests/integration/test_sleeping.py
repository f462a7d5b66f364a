"""A model sleeps and wakes while requests stream: memory goes and comes back, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import Asleep, BadRequest, RemoteError
from pageant.protocol.statistics import GetExecutorStatistics
from tests.integration.test_pausing import PARAMS, PROMPTS, SETTINGS, Streams, scene, until

DEMO = Path(pageant.__file__).parent / "models" / "demo"
__all__ = ["scene"]


async def right_of(engine: pageant.Engine) -> list[list[int]]:
    outputs = await asyncio.gather(*(engine.complete(prompt, PARAMS) for prompt in PROMPTS))
    return [output.outputs[0].token_ids for output in outputs]


async def pid_of(engine: pageant.Engine, node: str) -> int:
    return next(one.pid for one in await engine.statistics() if one.node == node)


async def kill(engine: pageant.Engine, node: str) -> None:
    """Ends a process, and returns when another has taken its place."""
    pid = await pid_of(engine, node)
    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        pids = {one.node: one.pid for one in await engine.statistics()}
        return pids.get(node, pid) != pid

    await until(is_back)


@pytest.mark.parametrize("level", [1, 2])
async def test_kept_requests_go_on_with_the_same_tokens_when_it_wakes(scene, level):
    engine, params, right = scene
    streams = Streams(engine, params)
    await streams.begun()
    await engine.sleep(level, mode="keep")
    assert await engine.is_sleeping() and not await engine.is_paused()
    late = Streams(engine, params)
    await asyncio.sleep(0.05)
    assert None in streams.reasons and late.tokens == [[]] * len(PROMPTS)
    await engine.wake_up()
    assert not await engine.is_sleeping()
    assert await streams.ended() == await late.ended() == right


async def test_open_requests_end_first_or_at_once(scene):
    engine, params, right = scene
    for mode in ("wait", "abort"):
        streams = Streams(engine, params)
        await streams.begun()
        await engine.sleep(1, mode=mode)
        tokens = await streams.ended()
        for found, expected, reason in zip(tokens, right, streams.reasons, strict=True):
            assert found == expected if mode == "wait" else found == expected[: len(found)]
            assert mode == "abort" or reason != "abort"
        await engine.wake_up()


async def test_it_is_brought_back_in_parts(scene):
    engine, params, right = scene
    await engine.sleep(2)
    streams = Streams(engine, params)
    await engine.wake_up(["weights"])
    assert await engine.is_sleeping()
    statistics = await engine.ask("executor", GetExecutorStatistics())
    assert statistics.memory_bytes["weights"] > 0 == statistics.memory_bytes["kv_cache"]
    await engine.wake_up(["kv_cache"])
    assert not await engine.is_sleeping()
    assert await streams.ended() == right
    await engine.wake_up()  # which it is
    await engine.sleep(0, mode="keep")
    assert await engine.is_paused() and not await engine.is_sleeping()
    await engine.wake_up(["scheduling"])
    assert not await engine.is_paused()
    for level, tags, words in ((3, None, "level is 3"), (1, ["kv"], "tags has 'kv'")):
        with pytest.raises(BadRequest, match=words):
            await (engine.wake_up(tags) if tags else engine.sleep(level))


async def test_memory_goes_and_comes_back():
    """Count the memory of the executor's own process by the system's figures."""
    prompts = [[5 + (7 * index + place) % 4000 for place in range(700)] for index in range(12)]
    params = SamplingParams(temperature=0, max_tokens=1)
    settings = {"threads": 1, "kv_cache_memory": "256MiB", "max_model_len": 1024, "dtype": "float32"}
    async with pageant.Engine(DEMO, placement="each", **settings) as engine:

        async def resident() -> int:
            return next(one.resident_bytes for one in await engine.statistics() if one.node == "executor")

        await asyncio.gather(*(engine.complete(prompt, params) for prompt in prompts))
        held = (await engine.ask("executor", GetExecutorStatistics())).memory_bytes
        pool = await engine.pool_statistics()
        used = held["kv_cache"] * pool.blocks_cached // pool.num_blocks
        assert used > 30 * 2**20 and held["weights"] > 15 * 2**20, "else there is nothing to see"
        busy = await resident()
        await engine.sleep(1)
        kept = await resident()
        assert busy - kept > 0.8 * used, "its KV cache is gone"
        await engine.wake_up()
        await engine.sleep(2)
        bare = await resident()
        assert kept - bare > 0.7 * held["weights"], "its weights are gone too"
        await engine.wake_up(["weights"])
        assert await resident() - bare > 0.7 * held["weights"]
        await engine.wake_up()
        assert (await engine.complete(prompts[0], params)).num_cached_tokens == 0


async def test_whoever_dies_it_sleeps_on_and_wakes(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", **SETTINGS) as engine:
        right = await right_of(engine)
        streams = Streams(engine, PARAMS)
        await streams.begun()
        await engine.sleep(1, mode="keep")
        for actor in ("executor", "scheduler"):
            await kill(engine, actor)
            assert await engine.is_sleeping()
        statistics = await engine.ask("executor", GetExecutorStatistics())
        assert statistics.memory_bytes["weights"] == 0, "what it kept went with its process"
        await engine.wake_up()
        assert await streams.ended() == right
        await kill(engine, "executor")
        assert not await engine.is_sleeping()
        assert await right_of(engine) == right


async def test_it_wakes_though_a_process_dies_of_something_else_meanwhile(checkpoint, tmp_path, monkeypatch):
    source = f"""
import asyncio
from pathlib import Path
from pageant.actors.executor.actor import Executor

class Halting(Executor):
    async def on_start(self):
        if Path({str(tmp_path / "halt")!r}).exists():
            Path({str(tmp_path / "halts")!r}).touch()
            await asyncio.Event().wait()
        await super().on_start()
"""
    (tmp_path / "halting_lab.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = SETTINGS | {"actors": {"executor": {"class": "halting_lab:Halting"}}}
    async with pageant.Engine(checkpoint.path, placement="each", **settings) as engine:
        right = await right_of(engine)
        await engine.sleep(1)
        (tmp_path / "halt").touch()
        waking = asyncio.create_task(engine.wake_up())

        async def halts() -> bool:
            return (tmp_path / "halts").exists()

        await until(halts)
        (tmp_path / "halt").unlink()
        await kill(engine, "executor")
        await waking
        assert not await engine.is_sleeping()
        assert await right_of(engine) == right


async def test_one_that_cannot_be_brought_back_sleeps_on(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint.path, tmp_path / "model")
    async with pageant.Engine(folder, placement="one", **SETTINGS) as engine:
        right = await right_of(engine)
        await engine.sleep(2)
        late = Streams(engine, PARAMS)
        shutil.move(folder / "model.safetensors", tmp_path)
        with pytest.raises(RemoteError, match=r"goes on as it was: CheckpointError: .*safetensors"):
            await engine.wake_up()
        assert await engine.is_sleeping()
        shutil.move(tmp_path / "model.safetensors", folder)
        await engine.wake_up()
        assert await late.ended() == right


async def test_it_can_begin_asleep(checkpoint):
    async with pageant.Engine(checkpoint.path, start_asleep=True, placement="one", **SETTINGS) as engine:
        assert await engine.is_sleeping()
        early = Streams(engine, PARAMS)
        await asyncio.sleep(0.05)
        await engine.wake_up()
        assert await early.ended() == await right_of(engine)
        assert engine.max_model_len == 256


async def test_requests_are_refused_where_they_are_not_to_wait(checkpoint):
    settings = SETTINGS | {"while_asleep": "refuse", "served_model_name": "tiny"}
    async with pageant.Engine(checkpoint.path, placement="one", **settings) as engine:
        await engine.sleep()
        with pytest.raises(Asleep, match="the model 'tiny' sleeps"):
            await engine.complete(PROMPTS[0], PARAMS)
        await engine.wake_up()
        assert (await engine.complete(PROMPTS[0], PARAMS)).finished


async def test_a_pause_and_adapters_are_as_they_were_asked_to_be_when_it_wakes(checkpoint, save_adapter):
    folders = [save_adapter(checkpoint.model, ("q_proj", "o_proj"), seed=seed, size=0.3) for seed in (0, 1)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    right = []
    for folder in folders:
        folder.merged.generation_config = checkpoint.model.generation_config
        right.append(type(checkpoint)(checkpoint.path, folder.merged, 0).greedy(PROMPTS[0], 20))
    adapters = {"first": folders[0].path}
    async with pageant.Engine(checkpoint.path, adapters=adapters, placement="one", **SETTINGS) as engine:
        await engine.pause("keep")
        await engine.sleep(1, mode="keep")
        assert await engine.is_paused()
        await engine.remove_adapter("first")
        await engine.add_adapter("second", folders[1].path)
        with pytest.raises(BadRequest, match="no such folder"):
            await engine.add_adapter("third", "nowhere")
        assert await engine.adapters() == ["second"]
        with pytest.raises(BadRequest, match="adapter is 'first'"):
            await engine.complete(PROMPTS[0], params, adapter="first")
        late = asyncio.create_task(engine.complete(PROMPTS[0], params, adapter="second"))
        await engine.wake_up(["weights", "kv_cache"])
        assert await engine.is_paused() and not await engine.is_sleeping()
        await asyncio.sleep(0.05)
        assert not late.done()
        await engine.resume()
        assert (await late).outputs[0].token_ids == right[1]


async def test_all_of_it_is_recorded(checkpoint, tmp_path):
    async with pageant.Engine(checkpoint.path, placement="each", wire="always", **SETTINGS) as engine:
        async with engine.record(tmp_path / "all", kinds=["*"]):
            await engine.pause("keep")
            await engine.resume()
            await engine.sleep(2)
            await engine.wake_up()
            await engine.reset_prefix_cache()
            await engine.complete(PROMPTS[0], PARAMS)
        assert (tmp_path / "all").stat().st_size > 1000


def test_a_script_does_the_same(checkpoint):
    with pageant.LLM(checkpoint.path, placement="one", progress=False, **SETTINGS) as llm:
        before = llm.generate([PROMPTS[0]], PARAMS)[0].outputs[0].token_ids
        llm.sleep(level=2)
        assert llm.is_sleeping()
        llm.wake_up(tags=["weights"])
        llm.wake_up()
        assert not llm.is_sleeping()
        assert llm.generate([PROMPTS[0]], PARAMS)[0].outputs[0].token_ids == before
