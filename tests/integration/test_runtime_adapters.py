"""Adapters that come and go while requests are computed: each request gets the tokens of its own, whoever dies."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.frontend.outputs import RequestFailed
from pageant.protocol.errors import BadRequest

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SMALL = {"placement": "one", "threads": 1, "dtype": "float32", "num_blocks": 64, "max_num_seqs": 16}
LENGTH = 20
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "in chunks, over the wire, short of blocks": {
        "wire": "always",
        "max_num_batched_tokens": 24,
        "num_blocks": 18,
    },
    "speculating": {"speculation": {"method": "ngram", "tokens": 3}},
    "by two stages": {"pipeline_parallel": 2},
}


@pytest.fixture(scope="module")
def adapters(checkpoint, save_adapter) -> dict[str, Any]:
    """Two of the model that most tests serve."""
    made = {
        "one": save_adapter(checkpoint.model, LINEAR, size=0.2),
        "two": save_adapter(checkpoint.model, LINEAR[:2], seed=1, size=0.3, r=8, lora_alpha=16),
    }
    for adapter in made.values():
        adapter.merged.generation_config = checkpoint.model.generation_config
    return made


@pytest.fixture(scope="module")
def right(checkpoint, adapters) -> Callable[..., list[int]]:
    """Return what transformers says, with the adapter merged into the model."""
    models = {None: checkpoint.model, **{name: adapter.merged for name, adapter in adapters.items()}}

    def greedy(name: str | None, prompt: list[int], length: int = LENGTH) -> list[int]:
        found: list[int] = type(checkpoint)(checkpoint.path, models[name], 0).greedy(prompt, length)
        return found

    return greedy


@pytest.fixture(scope="module")
def prompts(checkpoint) -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(4, checkpoint.vocab_size) for _ in range(length)] for length in (3, 40, 64)]


async def tokens_of(engine: pageant.Engine, prompt: list[int], adapter: str | None) -> list[int]:
    return (await engine.complete(prompt, GREEDY, adapter=adapter)).outputs[0].token_ids


async def begin(
    engine: pageant.Engine, prompt: list[int], adapter: str | None
) -> AsyncIterator[pageant.RequestOutput]:
    """A stream that has said something."""
    stream = engine.generate(prompt, LONG, adapter=adapter)
    assert not (await anext(stream)).finished
    return stream


@pytest.mark.parametrize("settings", WAYS.values(), ids=list(WAYS))
async def test_an_adapter_comes_and_goes_and_another_takes_its_name(
    checkpoint, adapters, right, prompts, settings
):
    async with pageant.Engine(checkpoint.path, **SMALL | settings) as engine:
        assert await engine.adapters() == []
        with pytest.raises(BadRequest, match="adapter is 'mine'; this model has none"):
            await tokens_of(engine, prompts[0], "mine")
        bare = await begin(engine, prompts[0], None)
        for name in ("one", "two"):
            await engine.add_adapter("mine", adapters[name].path)
            assert await engine.adapters() == ["mine"]
            for prompt in prompts:
                assert await tokens_of(engine, prompt, "mine") == right(name, prompt), name
                assert await tokens_of(engine, prompt, None) == right(None, prompt)
            running = await begin(engine, prompts[1], "mine")
            whole = asyncio.create_task(engine.complete(prompts[1], LONG, adapter="mine"))
            await asyncio.sleep(0.05)
            await engine.remove_adapter("mine")
            with pytest.raises(RequestFailed, match="the adapter 'mine' was unloaded"):
                async for _ in running:
                    pass
            with pytest.raises(RequestFailed, match="the adapter 'mine' was unloaded"):
                await whole
            with pytest.raises(BadRequest, match="adapter is 'mine'"):
                await tokens_of(engine, prompts[0], "mine")
        ended = [output async for output in bare][-1]
        assert ended.outputs[0].token_ids == right(None, prompts[0], 150)
        runner = engine._session._cluster.node.cells["executor/0"].actor._runner
        assert runner._adapters._adapters == {}, "their weights are gone"


async def test_requests_that_have_begun_end_with_the_adapter_that_another_took_the_place_of(
    checkpoint, adapters, right, prompts
):
    folders = {"mine": adapters["one"].path}
    async with pageant.Engine(checkpoint.path, adapters=folders, **SMALL) as engine:
        running = await begin(engine, prompts[0], "mine")
        with pytest.raises(BadRequest, match="an adapter is called 'mine' already"):
            await engine.add_adapter("mine", adapters["two"].path)
        await engine.add_adapter("mine", adapters["two"].path, in_place=True)
        assert await tokens_of(engine, prompts[0], "mine") == right("two", prompts[0])
        ended = [output async for output in running][-1]
        assert ended.outputs[0].token_ids == right("one", prompts[0], 150)
        book = engine._session._cluster.node.cells["executor/0"].actor._adapters
        async with asyncio.timeout(120):
            is_there = True
            while is_there:
                await asyncio.sleep(0.1)
                is_there = "mine" in book  # the key of the first
        assert await engine.adapters() == ["mine"]
        assert await tokens_of(engine, prompts[1], "mine") == right("two", prompts[1])


async def test_they_are_there_after_whoever_died(checkpoint, adapters, right, prompts, tmp_path, caplog):
    lost = shutil.copytree(adapters["two"].path, tmp_path / "lost")
    settings = SMALL | {"placement": "each"}
    async with pageant.Engine(checkpoint.path, adapters={"one": adapters["one"].path}, **settings) as engine:
        await engine.add_adapter("mine", adapters["two"].path)
        await engine.add_adapter("lost", lost)
        await engine.remove_adapter("one")
        shutil.rmtree(lost)
        expected = right("two", prompts[1], 150)
        for actor in ("scheduler", "executor"):
            running = await begin(engine, prompts[1], "mine")
            pid = next(node.pid for node in await engine.statistics() if node.node == actor)
            os.kill(pid, signal.SIGKILL)
            ended = [output async for output in running][-1]
            assert ended.outputs[0].token_ids == expected
            assert await tokens_of(engine, prompts[0], "mine") == right("two", prompts[0])
        for name in ("one", "lost"):
            with pytest.raises(BadRequest, match=rf"adapter is '{name}'; expected one of: mine"):
                await tokens_of(engine, prompts[0], name)
        assert await tokens_of(engine, prompts[0], None) == right(None, prompts[0])


async def test_what_is_wrong_is_said_and_changes_nothing(checkpoint, adapters, prompts, right, tmp_path):
    folders = {"mine": adapters["one"].path}
    settings = SMALL | {"max_lora_rank": 4, "served_model_name": "base"}
    async with pageant.Engine(checkpoint.path, adapters=folders, **settings) as engine:
        for name, folder, words in (
            ("other", tmp_path / "nowhere", "no such folder"),
            ("other", tmp_path, "no adapter_config.json"),
            ("other", adapters["two"].path, r"rank 8 .*max_lora_rank"),
            ("base", adapters["one"].path, "a model is called 'base' already"),
            ("", adapters["one"].path, "name is ''"),
        ):
            with pytest.raises(BadRequest, match=words):
                await engine.add_adapter(name, folder)
        with pytest.raises(BadRequest, match=r"rank 8 .*max_lora_rank"):
            await engine.add_adapter("mine", adapters["two"].path, in_place=True)
        with pytest.raises(BadRequest, match="no adapter is called 'other'"):
            await engine.remove_adapter("other")
        assert await engine.adapters() == ["mine"]
        assert await tokens_of(engine, prompts[0], "mine") == right("one", prompts[0])


def test_a_script_does_the_same(llm, adapters, right, prompts):
    llm.add_adapter("mine", adapters["one"].path)
    found = llm.generate([prompts[1]], GREEDY, adapter="mine")[0].outputs[0].token_ids
    assert found == right("one", prompts[1])
    llm.remove_adapter("mine")
    assert llm.adapters() == []


async def test_the_simulated_model_has_them_too(checkpoint, adapters, prompts):
    simulated = "pageant.actors.executor.simulated:SimulatedExecutor"
    settings = SMALL | {"actors": {"executor": {"class": simulated, "options": {"vocab_size": 512}}}}
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, detokenize=False)
    async with pageant.Engine(checkpoint.path, **settings) as engine:
        await engine.add_adapter("mine", adapters["one"].path)
        found = [await engine.complete(prompts[1], params, adapter=name) for name in (None, "mine")]
        assert found[0].outputs[0].token_ids != found[1].outputs[0].token_ids
