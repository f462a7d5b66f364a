"""Operations on a group of executors that serves: it is swapped, sleeps, takes other weights, and is recorded."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageant import LLM, Engine, SamplingParams
from pageant.actors.runtime.address import SUPERVISOR
from pageant.protocol.errors import RemoteError, StartupError
from pageant.protocol.statistics import GetExecutorStatistics
from pageant.protocol.supervision import GetDirectory
from pageant.scripts.chaos.load import Load, mixed_requests, undisturbed
from pageant.scripts.replay.compare import comparable, differences
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_model, play_stand_in
from tests.integration.test_groups import DEMO, SMALL

SHAPES = {"two ranks": {"tensor_parallel": 2}, "two stages": {"pipeline_parallel": 2}}
ASKED = mixed_requests(17, 20)
SECONDS = 120.0
WEIGHTS = "model.safetensors"
PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture(scope="module", params=SHAPES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A group in one process."""
    settings = SMALL | {"num_blocks": 256, "max_num_seqs": 16, "seed": 5}
    engine = Engine(
        DEMO, placement="one", speculation={"method": "ngram"}, **SHAPES[request.param], **settings
    )
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def right(engine: Engine) -> list[Any]:
    """Return the outputs of all requests undisturbed."""
    return asyncio.run(undisturbed(engine, ASKED))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of the same shape, with other weights."""
    folder = tmp_path_factory.mktemp("weights") / "other"
    shutil.copytree(DEMO, folder)
    random = torch.Generator().manual_seed(3)
    weights = load_file(folder / WEIGHTS)
    for name, weight in weights.items():
        noise = torch.randn(weight.shape, generator=random) * 0.05
        weights[name] = (weight.float() + noise).to(weight.dtype)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def expected(other: Path) -> dict[str, list[int]]:
    """Return what one executor says with the weights of each checkpoint."""
    found = {}
    for name, folder in (("demo", DEMO), ("other", other)):
        with LLM(folder, placement="one", **SMALL) as llm:
            (output,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
            found[name] = output.outputs[0].token_ids
    assert found["demo"] != found["other"]
    return found


async def said(engine: Engine) -> list[int]:
    """Return what a group says now."""
    return (await engine.complete(PROMPT, GREEDY)).outputs[0].token_ids


async def test_a_group_and_others_beside_it_are_swapped_while_it_computes_and_nothing_is_lost(
    engine: Engine, right: list[Any]
) -> None:
    load = Load(engine, ASKED, right)
    load.begin()
    async with asyncio.timeout(SECONDS):
        for actor in ("scheduler", "blocks", "executor/0", "grammar", "drafter", "detokenizer", "executor/1"):
            await load.all_have_moved(time.monotonic())
            await engine.swap(actor)
        await load.all_have_moved(time.monotonic())
        await load.end()
    assert load.lost == [] and load.changed == []


async def incarnations(engine: Engine) -> list[int]:
    """Return those of the members."""
    directory = await engine.ask(SUPERVISOR, GetDirectory())
    return [one.incarnation for one in directory.actors if one.name.startswith("executor/") and one.up]


@pytest.mark.parametrize("level", [1, 2])
async def test_a_group_sleeps_and_wakes_as_one_and_kept_requests_go_on_with_the_same_tokens(
    engine: Engine, right: list[Any], level: int
) -> None:
    load = Load(engine, ASKED[:8], right[:8])
    load.begin()
    await load.all_have_moved(time.monotonic())
    (before, _) = await incarnations(engine)
    await engine.sleep(level, mode="keep")
    assert await engine.is_sleeping()
    assert await incarnations(engine) == [before + 1] * 2
    kept = [await weight_bytes(engine, rank) for rank in range(2)]
    assert all(kept) if level == 1 else kept == [0, 0]
    if level == 2:
        await engine.wake_up(["weights"])
        assert await engine.is_sleeping()
        assert all([await weight_bytes(engine, rank) for rank in range(2)])
    await engine.wake_up()
    assert not await engine.is_sleeping()
    async with asyncio.timeout(SECONDS):
        await load.all_have_moved(time.monotonic())
        await load.end()
    assert load.lost == [] and load.changed == []


async def weight_bytes(engine: Engine, rank: int) -> int:
    """Return the bytes of the weights that a member has."""
    statistics = await engine.ask(f"executor/{rank}", GetExecutorStatistics())
    return statistics.memory_bytes["weights"]


@pytest.mark.parametrize("beside", [True, False])
async def test_a_group_goes_on_with_other_weights_of_which_each_member_loads_its_share(
    engine: Engine,
    other: Path,
    expected: dict[str, list[int]],
    beside: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pageant.lifecycle")
    assert await said(engine) == expected["demo"]
    streams = [engine.generate(PROMPT, LONG) for _ in range(4)]
    for stream in streams:
        await anext(stream)
    await engine.update_weights(other, version="other", beside=beside)
    assert await said(engine) == expected["other"]
    for stream in streams:
        last = [output async for output in stream][-1]
        assert last.weight_versions[-1] == "other"
    await engine.update_weights(DEMO, version=f"demo, beside {beside}", beside=beside)
    assert await said(engine) == expected["demo"]
    assert "are loaded in a pause" not in caplog.text


async def test_a_group_that_sleeps_wakes_with_other_weights(
    engine: Engine, other: Path, expected: dict[str, list[int]]
) -> None:
    await engine.sleep(1)
    await engine.update_weights(other, version="other, asleep")
    await engine.wake_up()
    assert await said(engine) == expected["other"]
    await engine.update_weights(DEMO, version="demo, awake")
    assert await said(engine) == expected["demo"]


async def test_a_swap_that_would_make_a_group_another_is_refused_by_name(
    engine: Engine, expected: dict[str, list[int]]
) -> None:
    before = await incarnations(engine)
    for options, words in (
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, "makes 4; expected 2, as there are"),
        ({"tensor_parallel": 1, "pipeline_parallel": 1}, "found no group, which makes 1; expected 2"),
        ({"device": "cpu:0"}, "device: found 'cpu:0'; expected 'cpu': members of a group keep the devices"),
        ({"step_patients": 1.0}, "no such option; did you mean 'step_patience'"),
    ):
        for member in ("executor/0", "executor/1"):
            with pytest.raises(RemoteError, match=words):
                await engine.swap(member, options=options)
    assert await incarnations(engine) == before and await said(engine) == expected["demo"]


async def test_a_group_whose_successor_cannot_start_goes_on_as_it_was(
    engine: Engine, expected: dict[str, list[int]], tmp_path: Path
) -> None:
    with pytest.raises(StartupError, match=r"executor/0 goes on as it was: CheckpointError: .*nowhere"):
        await engine.swap("executor/0", options={"model": str(tmp_path / "nowhere")})
    assert await said(engine) == expected["demo"]


async def test_a_recording_of_a_group_replays_to_the_same_tokens(engine: Engine, tmp_path: Path) -> None:
    """The recording brings its topology along: the stand-in and the model that it is played to are groups too."""
    path = tmp_path / "group.recording"
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
    prompts = [list(range(40, 50 + 7 * number)) for number in range(4)]
    async with engine.record(path):
        outputs = await asyncio.gather(*(engine.complete(prompt, params) for prompt in prompts))
    said = {
        tuple(prompt): output.outputs[0].token_ids for prompt, output in zip(prompts, outputs, strict=True)
    }
    load = read_load(path)
    expected = [said[tuple(submit.prompt_token_ids.tolist())] for submit in load.submits]
    assert load.whole and len(load.courses) == len(prompts)
    stand_in, _ = await asyncio.to_thread(play_stand_in, path, load, {}, 1.0)
    model = {"model": DEMO, "placement": "one", "dtype": "float32", "kernels": "reference", "threads": 1}
    again, resolved = await asyncio.to_thread(play_model, path, load, model, 1000.0)
    for played in (load.courses, stand_in, again):
        assert [course.token_ids.tolist() for course in played] == expected
        assert differences(load.courses, played, comparable([load.courses, played])).other_tokens == 0
    members = {
        actor.name: actor.cls.rpartition(":")[2] for actor in resolved.actors if "executor" in actor.name
    }
    assert members == {"executor/0": "Executor", "executor/1": "Rank"}
