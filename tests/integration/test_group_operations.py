"""Operations beside a group of executors that serves: swaps of others, recordings, and what a group refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pageant import Engine, SamplingParams
from pageant.protocol.errors import BadRequest
from pageant.scripts.chaos.load import Load, mixed_requests, undisturbed
from pageant.scripts.replay.compare import comparable, differences
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_model, play_stand_in
from tests.integration.test_groups import DEMO, SMALL

SHAPES = {"two ranks": {"tensor_parallel": 2}, "two stages": {"pipeline_parallel": 2}}
ASKED = mixed_requests(17, 20)
SECONDS = 120.0


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


async def test_others_are_swapped_beside_a_group_that_computes_and_nothing_is_lost(
    engine: Engine, right: list[Any]
) -> None:
    load = Load(engine, ASKED, right)
    load.begin()
    async with asyncio.timeout(SECONDS):
        for actor in ("scheduler", "blocks", "grammar", "drafter", "detokenizer", "scheduler"):
            await load.all_have_moved(time.monotonic())
            await engine.swap(actor)
        await load.all_have_moved(time.monotonic())
        await load.end()
    assert load.lost == [] and load.changed == []


@pytest.mark.parametrize("what", ["sleep 1", "sleep 2", "weights", "executor/0", "executor/1"])
async def test_what_would_make_a_group_another_is_refused_by_name_while_requests_stream(
    engine: Engine, right: list[Any], what: str
) -> None:
    load = Load(engine, ASKED[:4], right[:4])
    load.begin()
    await load.all_have_moved(time.monotonic())
    kind, _, level = what.partition(" ")
    member = "executor/0" if kind in ("sleep", "weights") else kind
    with pytest.raises(BadRequest, match=f"{member} is one of a group that lives as one and is not swapped"):
        if kind == "sleep":
            await engine.sleep(int(level), mode="keep")
        elif kind == "weights":
            await engine.update_weights(DEMO)
        else:
            await engine.swap(member, options={"step_patience": 5.0})
    async with asyncio.timeout(SECONDS):
        await load.all_have_moved(time.monotonic())
        await load.end()
    assert load.lost == [] and load.changed == []
    assert not await engine.is_sleeping() and not await engine.is_paused()


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
