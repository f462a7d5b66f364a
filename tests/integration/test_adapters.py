"""Adapters behind one engine: each request gets the tokens of its own, whatever else is in the batch, and no KV of
another's."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pageant
from pageant import BeamSearchParams, SamplingParams
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.protocol.errors import BadRequest, TopologyError
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_stand_in

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SMALL = {"placement": "one", "threads": 1, "dtype": "float32", "num_blocks": 64, "max_num_seqs": 16}
LENGTH = 20
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)


@pytest.fixture(scope="module")
def adapters(checkpoint, save_adapter) -> dict[str, Any]:
    """Two of the model that most tests serve."""
    return {
        "one": save_adapter(checkpoint.model, LINEAR, size=0.2),
        "two": save_adapter(checkpoint.model, LINEAR[:2], seed=1, size=0.3, r=8, lora_alpha=16),
    }


@pytest.fixture(scope="module")
def folders(adapters) -> dict[str, Path]:
    return {name: adapter.path for name, adapter in adapters.items()}


@pytest.fixture(scope="module")
def right(checkpoint, adapters) -> Callable[[str | None, list[int]], list[int]]:
    """Return what transformers says, with the adapter merged into the model."""
    models = {None: checkpoint.model, **{name: adapter.merged for name, adapter in adapters.items()}}
    for adapter in adapters.values():
        adapter.merged.generation_config = checkpoint.model.generation_config

    def greedy(name: str | None, prompt: list[int]) -> list[int]:
        found: list[int] = type(checkpoint)(checkpoint.path, models[name], 0).greedy(prompt, LENGTH)
        return found

    return greedy


def prompts_of(vocab_size: int, lengths: tuple[int, ...] = (3, 17, 40, 64)) -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(4, vocab_size) for _ in range(length)] for length in lengths]


async def ask_all(
    engine: pageant.Engine, prompts: list[list[int]], params: SamplingParams = GREEDY
) -> dict[tuple[int, str | None], list[list[int]]]:
    """Every prompt with each adapter and without any, all at once."""
    asked = [(index, name) for index in range(len(prompts)) for name in (None, "one", "two")]
    outputs = await asyncio.gather(
        *(engine.complete(prompts[index], params, adapter=name) for index, name in asked)
    )
    found = [[one.token_ids for one in output.outputs] for output in outputs]
    return dict(zip(asked, found, strict=True))


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({}, False),
        ({"wire": "always", "max_num_batched_tokens": 24, "async_scheduling": False}, False),
        ({"num_blocks": 16, "kernels": "reference"}, True),
        ({"speculation": {"method": "ngram", "tokens": 3}}, False),
    ],
    ids=["plainly", "in chunks, over the wire", "preempted", "speculating"],
)
async def test_a_batch_of_adapters_and_the_bare_model_answers_as_the_merged_models_do(
    checkpoint, folders, right, settings, preempts
) -> None:
    prompts = prompts_of(checkpoint.vocab_size)
    async with pageant.Engine(checkpoint.path, adapters=folders, **SMALL | settings) as engine:
        found = await ask_all(engine, prompts)
        statistics = await engine.scheduler_statistics()
    for (index, name), (tokens,) in found.items():
        assert tokens == right(name, prompts[index]), f"prompt {index} with {name}"
    assert len({tuple(found[0, name][0]) for name in (None, "one", "two")}) == 3, "they are meant to differ"
    assert (statistics.counters["preemptions"] > 0) == preempts
    assert statistics.num_running == 0


@pytest.mark.parametrize("quantization", [None, "int8"])
async def test_samples_are_the_same_alone_and_in_any_batch(checkpoint, folders, quantization) -> None:
    settings = SMALL | {"dtype": "bfloat16", "quantization": quantization, "enable_prefix_caching": False}
    settings["deterministic"] = quantization is not None
    params = SamplingParams(temperature=1.0, seed=5, n=2, max_tokens=LENGTH, ignore_eos=True)
    prompts = prompts_of(checkpoint.vocab_size)[1:3]
    async with pageant.Engine(checkpoint.path, adapters=folders, **settings) as engine:
        together = await ask_all(engine, prompts, params)
        for (index, name), found in together.items():
            alone = await engine.complete(prompts[index], params, adapter=name)
            assert [one.token_ids for one in alone.outputs] == found


async def test_prefixes_are_shared_within_an_adapter_only(checkpoint, folders, right) -> None:
    (prompt,) = prompts_of(checkpoint.vocab_size, (64,))
    async with pageant.Engine(checkpoint.path, adapters=folders, **SMALL) as engine:

        async def ask(adapter: str | None, **settings: Any) -> int:
            """The cached tokens of the prompt."""
            output = await engine.complete(prompt, GREEDY, adapter=adapter, **settings)
            assert output.outputs[0].token_ids == right(adapter, prompt)
            assert output.metrics is not None
            return output.metrics.num_cached_tokens

        assert [await ask(name) for name in ("one", None, "two")] == [0, 0, 0]
        assert all([await ask(name) for name in ("one", None, "two")])
        assert [await ask(None, cache_salt=name) for name in ("one", "two")] == [0, 0]
        assert [await ask(None, extra_keys=[name]) for name in ("one", "two")] == [0, 0]
        assert await ask("one", cache_salt="one") == 0


async def test_a_request_keeps_its_adapter_when_scheduler_and_executor_are_others(
    checkpoint, folders, right
) -> None:
    prompts = prompts_of(checkpoint.vocab_size, (9, 30))
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    async with pageant.Engine(checkpoint.path, adapters=folders, **SMALL) as engine:
        for actor in ("scheduler", "executor/0"):
            streams = [
                engine.generate(prompt, params, adapter=name) for prompt in prompts for name in (None, "one")
            ]
            begun = [await anext(stream) for stream in streams]
            assert not any(output.finished for output in begun), "they are meant to be under way"
            await engine.swap(actor)
            ended = [[output async for output in stream][-1] for stream in streams]
            expected = [right(name, prompt) for prompt in prompts for name in (None, "one")]
            assert [output.outputs[0].token_ids for output in ended] == expected


async def test_a_request_keeps_its_adapter_when_processes_are_killed(checkpoint, folders) -> None:
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    prompts = prompts_of(checkpoint.vocab_size, (9, 30))

    async def read(engine: pageant.Engine, index: int, name: str | None, begun: asyncio.Event) -> list[int]:
        tokens: list[int] = []
        async for output in engine.generate(prompts[index], params, adapter=name):
            tokens = output.outputs[0].token_ids
            begun.set()
        return tokens

    async with pageant.Engine(checkpoint.path, adapters=folders, **SMALL | {"placement": "each"}) as engine:
        right = await ask_all(engine, prompts, params)
        for actor in ("scheduler", "executor"):
            events = {key: asyncio.Event() for key in right}
            reading = [asyncio.create_task(read(engine, *key, begun)) for key, begun in events.items()]
            await asyncio.gather(*(begun.wait() for begun in events.values()))
            os.kill(
                next(node.pid for node in await engine.statistics() if node.node == actor), signal.SIGKILL
            )
            assert await asyncio.gather(*reading) == [tokens for (tokens,) in right.values()]


async def test_the_simulated_model_says_something_else_with_each(checkpoint, folders) -> None:
    simulated = "pageant.actors.executor.simulated:SimulatedExecutor"
    executor = {"class": simulated, "options": {"vocab_size": 512}}
    settings = SMALL | {"actors": {"executor": executor}}
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, detokenize=False)
    prompts = prompts_of(checkpoint.vocab_size, (30, 30))
    async with pageant.Engine(checkpoint.path, adapters=folders, **settings) as engine:
        together = await ask_all(engine, prompts, params)
        alone = {key: await ask_all(engine, [prompts[key[0]]], params) for key in together}
    assert len({tuple(tokens) for (tokens,) in together.values()}) == len(together)
    assert together == {key: found[0, key[1]] for key, found in alone.items()}


async def test_beams_are_those_of_the_merged_model(checkpoint, folders, adapters, tmp_path) -> None:
    adapters["one"].merged.save_pretrained(tmp_path)
    for file in checkpoint.path.glob("*token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    found = []
    for path, settings in ((checkpoint.path, {"adapter": "one"}), (tmp_path, {})):
        async with pageant.Engine(path, adapters=folders if settings else None, **SMALL) as engine:
            search = await engine.beam_search([5, 6, 7, 8], params, **settings)
            found.append([sequence.token_ids for sequence in search.sequences])
    assert found[0] == found[1]


async def test_a_recording_keeps_who_shares_a_prefix_and_replays_without_adapters(
    checkpoint, folders, tmp_path
) -> None:
    (prompt,) = prompts_of(checkpoint.vocab_size, (64,))
    path = tmp_path / "one.recording"
    async with pageant.Engine(checkpoint.path, adapters=folders, **SMALL) as engine, engine.record(path):
        for name in (None, "one", "two", "one", None):
            await engine.complete(prompt, GREEDY, adapter=name)
    load = read_load(path)
    assert [submit.adapter for submit in load.submits] == [None] * 5
    played = await asyncio.to_thread(play_stand_in, path, load, {}, None)
    for courses in (load.courses, played[0]):
        cached = [course.finished.num_cached_tokens for course in courses if course.finished is not None]
        assert cached[:3] == [0] * 3 and all(cached[3:]) and len(cached) == 5


def test_an_adapter_that_is_not_there_is_refused_by_name(checkpoint, folders) -> None:
    with pageant.LLM(checkpoint.path, adapters=folders, progress=False, **SMALL) as llm:
        with pytest.raises(BadRequest, match=r"adapter is 'tow'; .*did you mean 'two'") as error:
            llm.generate([[5, 6]], GREEDY, adapter="tow")
        assert error.value.parameter == "adapter"
        assert len(llm.generate([[5, 6]], GREEDY, adapter="two")) == 1
    with (
        pageant.LLM(checkpoint.path, progress=False, **SMALL) as llm,
        pytest.raises(BadRequest, match="adapter is 'one'; this model has none"),
    ):
        llm.generate([[5, 6]], GREEDY, adapter="one")


def test_adapters_that_cannot_be_served_are_refused_before_anything_loads(checkpoint, folders) -> None:
    one = str(folders["one"])
    model = checkpoint.path.name
    refused: list[tuple[dict[str, Any], str]] = [
        (
            {"adapters": {"gone": "/nowhere"}},
            "adapters.gone: /nowhere: no such folder; expected an adapter's",
        ),
        ({"adapters": {"wrong": str(checkpoint.path)}}, "adapters.wrong: .*no adapter_config.json"),
        ({"adapters": {model: one}}, f"adapters.{model}: a model or another adapter is called '{model}' too"),
        ({"adapters": {"it": one}, "served_model_name": "it"}, "adapters.it: a model or another adapter is"),
        ({"adapters": {"": one}}, "adapters.: a name is ''; expected a text of 1 to 256 characters"),
        ({"adapters": {"one": 3}}, "adapters.one: found 3; expected the adapter's folder"),
        ({"adapters": [one]}, "adapters: found .*; expected a mapping of names to folders"),
        ({"adapters": {"two": str(folders["two"])}, "max_lora_rank": 4}, "adapters.two: .*rank 8 at"),
        ({"max_lora_rank": "4"}, "max_lora_rank: found '4'; expected a whole number"),
    ]
    for settings, found in refused:
        with pytest.raises(TopologyError, match=found):
            Session(topology_of(None, {"model": str(checkpoint.path), **settings}, SMALL))
    models = {name: {"model": str(checkpoint.path), "adapters": {"one": one}} for name in ("big", "small")}
    with pytest.raises(TopologyError, match=r"models\.small\.adapters\.one: a model or another"):
        Session(topology_of(None, {"models": models}, SMALL))
    models = {"big": {"model": str(checkpoint.path), "adapters": {"gone": "/nowhere"}}}
    with pytest.raises(TopologyError, match=r"models\.big\.adapters\.gone: /nowhere: no such folder"):
        Session(topology_of(None, {"models": models}, SMALL))
