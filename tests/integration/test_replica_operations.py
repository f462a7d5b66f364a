"""Operations on a model with replicas: each is done to all of them, and to one that is added later."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import pageant
from pageant import SamplingParams
from pageant.actors.lifecycle.control import ReplicaControl
from pageant.protocol.errors import BadRequest, RemoteError, StartupError

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 64, "max_num_seqs": 8, "placement": "one"}
LENGTH = 20
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
PROMPTS = [[9, 8, number] for number in range(10, 16)]


@pytest.fixture
def engine(checkpoint) -> Iterator[pageant.Engine]:
    engine = pageant.Engine(checkpoint.path, replicas=2, routing="least", **SETTINGS)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def said(engine: pageant.Engine, **settings: Any) -> list[list[int]]:
    """Return what all prompts get at once, which takes both replicas."""
    outputs = await asyncio.gather(*(engine.complete(prompt, GREEDY, **settings) for prompt in PROMPTS))
    return [list(output.outputs[0].token_ids) for output in outputs]


async def replace_all(engine: pageant.Engine) -> None:
    """Add a replica and remove those that were there before."""
    former = [one.name for one in await engine.replicas.ls()]
    await engine.replicas.add()
    for name in former:
        await engine.replicas.remove(name)


async def test_all_replicas_pause_sleep_and_wake_and_so_does_one_that_comes(engine, checkpoint):
    right = [checkpoint.greedy(prompt, LENGTH) for prompt in PROMPTS]
    await engine.pause("keep")
    assert await engine.is_paused()
    going = asyncio.create_task(said(engine))
    await replace_all(engine)
    assert await engine.is_paused() and not going.done()
    assert await engine.reset_prefix_cache(reset_running_requests=True)
    await engine.resume()
    assert await going == right
    await engine.replicas.add()
    await engine.sleep(level=2, mode="keep")
    assert await engine.is_sleeping()
    with pytest.raises((BadRequest, RemoteError), match="the model sleeps, and takes no other replica"):
        await engine.replicas.add()
    await engine.wake_up()
    assert not await engine.is_sleeping() and await said(engine) == right


async def test_all_replicas_have_an_adapter_and_so_has_one_that_comes(engine, checkpoint, save_adapter):
    adapter = save_adapter(checkpoint.model, ("q_proj", "v_proj", "o_proj"), size=0.2)
    adapter.merged.generation_config = checkpoint.model.generation_config
    merged = type(checkpoint)(checkpoint.path, adapter.merged, 0)
    right = [merged.greedy(prompt, LENGTH) for prompt in PROMPTS]
    with pytest.raises((BadRequest, RemoteError), match="elsewhere"):
        await engine.add_adapter("own", checkpoint.path.parent / "elsewhere")
    await engine.add_adapter("own", adapter.path)
    assert await said(engine, adapter="own") == right
    await replace_all(engine)
    assert await engine.adapters() == ["own"] and await said(engine, adapter="own") == right
    await engine.remove_adapter("own")
    assert await engine.adapters() == []


async def test_all_replicas_have_other_weights_and_so_has_one_that_comes(engine, checkpoint, tmp_path):
    torch.manual_seed(11)
    model = LlamaForCausalLM(checkpoint.model.config).to(torch.float32).eval()
    model.save_pretrained(tmp_path / "step-200")
    model.generation_config.eos_token_id = None
    other = type(checkpoint)(tmp_path / "step-200", model, checkpoint.vocab_size)
    right = [other.greedy(prompt, LENGTH) for prompt in PROMPTS]
    with pytest.raises((BadRequest, RemoteError), match="elsewhere"):
        await engine.update_weights(tmp_path / "elsewhere")
    await engine.update_weights(tmp_path / "step-200")
    assert await engine.get_weight_version() == "step-200" and await said(engine) == right
    await replace_all(engine)
    assert await engine.get_weight_version() == "step-200" and await said(engine) == right


async def test_replicas_that_did_not_change_are_named(monkeypatch):
    class Model:
        def __init__(self, replica: str) -> None:
            self.replica = replica

    there = [Model("replica-0/"), Model("replica-1/"), Model("replica-2/")]
    several = ReplicaControl(None, "", "demo")

    async def all_of(found: list[list[Model]]) -> list[Model]:
        return found.pop(0) if len(found) > 1 else found[0]

    async def change(model: Model, failing: str) -> str:
        if model.replica in failing:
            raise BadRequest("no memory")
        return model.replica

    monkeypatch.setattr(several, "all", functools.partial(all_of, [there]))
    with pytest.raises(StartupError, match=r"replica-1: no memory\. Changed: replica-0, replica-2$"):
        await several.on_all(functools.partial(change, failing="replica-1/"))
    with pytest.raises(BadRequest, match="no memory"):
        await several.on_all(functools.partial(change, failing="replica-0/replica-1/replica-2/"))
    monkeypatch.setattr(several, "all", functools.partial(all_of, [there, there[1:]]))
    done = await several.on_all(functools.partial(change, failing="replica-0/"))
    assert done == ["replica-1/", "replica-2/"], "one that is gone does not matter"
