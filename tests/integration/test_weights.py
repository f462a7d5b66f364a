"""The weights of another checkpoint take the place of the present ones while requests stream."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import BadRequest, RemoteError
from pageant.scripts.replay.load import read_load

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 64, "max_num_seqs": 8, "placement": "one"}
PROMPTS = [list(range(40, 70 + extra)) for extra in range(4)]
ALONE = list(range(110, 150))
KILLED_ONCE = """
import os, signal
from pathlib import Path
from pageant.actors.executor.actor import Executor

class Killed(Executor):
    async def on_start(self):
        await super().on_start()
        if self.options.weight_version == "new" and not Path({mark!r}).exists():
            Path({mark!r}).touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
LENGTH = 60
TURNED_FOUND = r"has layers\[0\]\.rope\.theta 500\.0; expected 10000\.0"
TURNED = {"rope_type": "default", "rope_theta": 500.0}
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=6 * LENGTH)  # far from ended when what follows its first token happens
WAYS: dict[str, dict[str, Any]] = {
    "plainly": {},
    "over the wire, short of blocks, speculating": {
        "wire": "always",
        "num_blocks": 20,
        "speculation": {"method": "ngram", "tokens": 3},
    },
    "with a draft model of the old weights": {"speculation": {"method": "draft", "tokens": 2}},
}


@pytest.fixture(scope="module")
def other(checkpoint, tmp_path_factory) -> Any:
    """A checkpoint of the same shape, with other weights and without a tokenizer; and what transformers says of it."""
    path = tmp_path_factory.mktemp("step-200")
    torch.manual_seed(11)
    model = LlamaForCausalLM(checkpoint.model.config).to(torch.float32).eval()
    model.save_pretrained(path)
    model.generation_config.eos_token_id = None
    return type(checkpoint)(path, model, checkpoint.vocab_size)


@pytest.fixture(scope="module")
def right(checkpoint, other) -> Callable[..., list[int]]:
    @functools.cache
    def cached(version: str, prompt: tuple[int, ...], length: int) -> list[int]:
        found: list[int] = {"default": checkpoint, "new": other}[version].greedy(list(prompt), length)
        return found

    def greedy(version: str, prompt: list[int], length: int = LENGTH) -> list[int]:
        return cached(version, tuple(prompt), length)

    return greedy


async def tokens_of(engine: pageant.Engine, prompt: list[int]) -> tuple[list[int], tuple[str, ...], int]:
    output = await engine.complete(prompt, GREEDY)
    return output.outputs[0].token_ids, output.weight_versions, output.num_cached_tokens


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("settings", WAYS.values(), ids=list(WAYS))
async def test_requests_go_on_with_the_new_weights_and_nothing_of_the_old(
    checkpoint, other, right, settings, beside
):
    if settings.get("speculation", {}).get("method") == "draft":
        settings = {"speculation": settings["speculation"] | {"model": str(checkpoint.path)}}
    async with pageant.Engine(checkpoint.path, **SETTINGS | settings) as engine:
        assert await engine.get_weight_version() == "default"
        assert await tokens_of(engine, ALONE) == (right("default", ALONE), ("default",), 0)
        update = asyncio.create_task(engine.update_weights(other.path, version="new", beside=beside))
        lengths = [LENGTH * (4 - place) // 4 for place in range(4)]  # so that they do not all end in one step
        asked = [_ask_until(engine, update, *one) for one in zip(PROMPTS, lengths, strict=True)]
        ended = await asyncio.gather(*asked)
        assert await update == "new"
        versions = {check_spans(output, right) for outputs in ended for output in outputs}
        assert ("default", "new") in versions, "some were open when the weights changed"
        assert versions <= {("default",), ("default", "new"), ("new",)}
        assert await tokens_of(engine, ALONE) == (right("new", ALONE), ("new",), 0)
        found = await tokens_of(engine, ALONE)
        assert found[:2] == (right("new", ALONE), ("new",)) and found[2] > 0, "its own prefixes are found"


async def _ask_until(
    engine: pageant.Engine, done: asyncio.Task[str], prompt: list[int], length: int
) -> list[pageant.RequestOutput]:
    """Ask for the prompt again and again until the task is done; for `length` tokens the first time."""
    ended = []
    while not done.done():
        ended.append(await engine.complete(prompt, replace(GREEDY, max_tokens=length)))
        length = LENGTH
    return ended


def check_spans(output: pageant.RequestOutput, right: Callable[..., list[int]]) -> tuple[str, ...]:
    """Check that each token is what the weights that the answer names for it draw. Return the names in order."""
    tokens, spans, prompt = (
        output.outputs[0].token_ids,
        output.outputs[0].weight_versions,
        output.prompt_token_ids,
    )
    assert spans is not None
    assert [span.start for span in spans] + [len(tokens)] == [0] + [span.end for span in spans]
    for span in spans:
        expected = right(span.version, prompt + tokens[: span.start], span.end - span.start)
        assert tokens[span.start : span.end] == expected, span
    assert tuple(span.version for span in spans) == output.weight_versions
    return output.weight_versions


async def test_open_requests_end_first_or_at_once(checkpoint, other, right):
    async with pageant.Engine(checkpoint.path, **SETTINGS) as engine:
        for mode, folder, length in (("wait", other.path, LENGTH), ("abort", checkpoint.path, 6 * LENGTH)):
            version = await engine.get_weight_version()
            stream = engine.generate(PROMPTS[0], replace(GREEDY, max_tokens=length))
            await anext(stream)
            await engine.update_weights(folder, mode=mode)
            last = [output async for output in stream][-1]
            expected = right("default" if mode == "wait" else "new", PROMPTS[0], length)
            tokens = last.outputs[0].token_ids
            assert last.weight_versions == (version,)
            assert tokens == expected if mode == "wait" else tokens == expected[: len(tokens)]
            assert last.outputs[0].finish_reason == ("length" if mode == "wait" else "abort")
        assert await engine.get_weight_version() == checkpoint.path.name != other.path.name


async def test_whoever_dies_it_computes_with_them(checkpoint, other, right):
    async with pageant.Engine(checkpoint.path, **SETTINGS | {"placement": "each"}) as engine:
        await engine.update_weights(other.path, version="new")
        for actor in ("executor", "scheduler"):
            stream = engine.generate(PROMPTS[1], GREEDY)
            await anext(stream)
            await kill(engine, actor)
            last = [output async for output in stream][-1]
            assert last.outputs[0].token_ids == right("new", PROMPTS[1])
            assert last.weight_versions == ("new",)


async def kill(engine: pageant.Engine, node: str) -> None:
    """End the process of an actor that has one of its own."""
    pid = next(one.pid for one in await engine.statistics() if one.node == node)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("dies", ["scheduler", "detokenizer"])
async def test_whoever_dies_an_answer_says_which_weights_drew_it(checkpoint, other, right, dies):
    async with pageant.Engine(checkpoint.path, **SETTINGS | {"placement": "each"}) as engine:
        stream = engine.generate(PROMPTS[2], LONG)
        await anext(stream)
        await engine.update_weights(other.path, version="new")
        await engine.pause("keep", clear_cache=False)
        await kill(engine, dies)
        await engine.resume()
        last = [output async for output in stream][-1]
        assert check_spans(last, right) == ("default", "new")


async def test_an_executor_that_is_killed_meanwhile_comes_back_with_the_new_weights(
    checkpoint, other, right, tmp_path, monkeypatch
):
    mark = tmp_path / "killed"
    (tmp_path / "killed_lab.py").write_text(KILLED_ONCE.format(mark=str(mark)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = SETTINGS | {"placement": "each", "actors": {"executor": {"class": "killed_lab:Killed"}}}
    async with pageant.Engine(checkpoint.path, **settings) as engine:
        stream = engine.generate(PROMPTS[3], GREEDY)
        await anext(stream)
        assert await engine.update_weights(other.path, version="new") == "new"
        assert mark.exists()
        assert check_spans([output async for output in stream][-1], right) == ("default", "new")


async def test_one_that_sleeps_or_is_paused_goes_on_with_them(checkpoint, other, right):
    async with pageant.Engine(checkpoint.path, **SETTINGS) as engine:
        await engine.sleep(1)
        await engine.update_weights(other.path, version="new")
        assert await engine.is_sleeping()
        await engine.wake_up(["weights"])
        await engine.wake_up()
        assert await tokens_of(engine, PROMPTS[0]) == (right("new", PROMPTS[0]), ("new",), 0)
        await engine.pause("keep")
        late = asyncio.create_task(tokens_of(engine, PROMPTS[0]))
        await engine.update_weights(checkpoint.path, version="default")
        assert await engine.is_paused() and not late.done()
        await engine.resume()
        assert await late == (right("default", PROMPTS[0]), ("default",), 0)


async def test_a_grammar_is_followed_and_a_recording_knows_of_it(checkpoint, other, tmp_path):
    guided = pageant.StructuredOutputsParams(regex="[ab]{120}")
    params = SamplingParams(temperature=1, seed=5, max_tokens=150, logprobs=1, structured_outputs=guided)
    path = tmp_path / "replaced.recording"
    async with pageant.Engine(checkpoint.path, **SETTINGS) as engine, engine.record(path):
        stream = engine.generate(PROMPTS[0], params)
        await anext(stream)
        await engine.update_weights(other.path, version="new")
        last = [output async for output in stream][-1]
        assert re.fullmatch("[ab]{120}", last.outputs[0].text)
        assert last.weight_versions == ("default", "new")
        assert len(last.outputs[0].logprobs) == len(last.outputs[0].token_ids)
    assert len(read_load(path).weight_versions) == 2, "under aliases: it keeps no names"


async def test_adapters_stay(checkpoint, other, save_adapter):
    adapter = save_adapter(other.model, ("q_proj", "o_proj"), size=0.3)
    adapter.merged.generation_config = other.model.generation_config
    expected = type(checkpoint)(other.path, adapter.merged, 0).greedy(PROMPTS[0], LENGTH)
    async with pageant.Engine(checkpoint.path, adapters={"one": adapter.path}, **SETTINGS) as engine:
        await engine.add_adapter("two", adapter.path)
        await engine.update_weights(other.path)
        for name in ("one", "two"):
            output = await engine.complete(PROMPTS[0], GREEDY, adapter=name)
            assert output.outputs[0].token_ids == expected


def changed(folder: Path, path: Path, **config: Any) -> Path:
    """A copy of a checkpoint, with other keys in its config.json."""
    shutil.copytree(folder, path)
    known = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(known | config))
    return path


def with_tensors(folder: Path, path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """Copy a checkpoint, with these tensors in place of its own."""
    shutil.copytree(folder, path)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


async def test_what_does_not_fit_is_refused_and_changes_nothing(
    checkpoint, other, right, make_checkpoint, tmp_path
):
    renamed = shutil.copytree(other.path, tmp_path / "renamed")
    tokenizer = json.loads((checkpoint.path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {
        token: (number + 1) % 260 for token, number in tokenizer["model"]["vocab"].items()
    }
    (renamed / "tokenizer.json").write_text(json.dumps(tokenizer))
    torn = shutil.copytree(other.path, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:-1000])
    tensors = load_file(other.path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    lacking = with_tensors(other.path, tmp_path / "lacking", {k: v for k, v in tensors.items() if k != name})
    narrow = with_tensors(other.path, tmp_path / "narrow", tensors | {name: tensors[name][:-1].clone()})
    async with pageant.Engine(checkpoint.path, **SETTINGS) as engine:
        for folder, words in (
            (lacking, f"missing tensors: {name}"),
            (narrow, f"{name}.*shape"),
            (changed(other.path, tmp_path / "turned", rope_parameters=TURNED), TURNED_FOUND),
            (tmp_path / "nowhere", "nowhere"),
            (make_checkpoint("qwen2").path, "is a Qwen2ForCausalLM; expected a LlamaForCausalLM"),
            (
                changed(other.path, tmp_path / "longer", max_position_embeddings=512),
                "max_model_len 512; expected 256",
            ),
            (renamed, "has other tokens"),
            (torn, "model.safetensors"),
        ):
            with pytest.raises(BadRequest, match=words):
                await engine.update_weights(folder)
        with pytest.raises(BadRequest, match="'default', which the present weights are called"):
            await engine.update_weights(other.path, version="default")
        assert await tokens_of(engine, PROMPTS[0]) == (right("default", PROMPTS[0]), ("default",), 0)


async def test_where_no_executor_can_begin_with_them_the_present_one_goes_on(
    checkpoint, other, right, tmp_path, monkeypatch
):
    source = """
from pageant.actors.executor.actor import Executor

class Wary(Executor):
    async def on_start(self):
        if self.options.weight_version == "new":
            raise ValueError("not these")
        await super().on_start()
"""
    (tmp_path / "wary_lab.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = SETTINGS | {"actors": {"executor": {"class": "wary_lab:Wary"}}}
    async with pageant.Engine(checkpoint.path, **settings) as engine:
        stream = engine.generate(PROMPTS[0], GREEDY)
        await anext(stream)
        with pytest.raises(RemoteError, match="goes on as it was: ValueError: not these"):
            await engine.update_weights(other.path, version="new")
        last = [output async for output in stream][-1]
        assert last.outputs[0].token_ids == right("default", PROMPTS[0])
        assert last.weight_versions == ("default",) and await engine.get_weight_version() == "default"


def test_a_script_does_the_same(checkpoint, other, right):
    with pageant.LLM(checkpoint.path, progress=False, **SETTINGS) as llm:
        assert llm.update_weights(other.path) == other.path.name == llm.get_weight_version()
        output = llm.generate([PROMPTS[0]], GREEDY)[0]
        assert output.outputs[0].token_ids == right("new", PROMPTS[0])
        assert output.weight_versions == (other.path.name,)
