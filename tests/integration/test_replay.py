"""A topology is recorded while it runs, and what it was asked is asked of others."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.runtime.recorder import Recorder
from pageant.actors.runtime.recording import RecordingReader
from pageant.actors.runtime.visiting import choose, visit
from pageant.protocol.errors import PageantError
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.requests import recorded as recorded_requests
from pageant.scripts.planning.shapes import shape_of
from pageant.scripts.replay.compare import comparable, differences, figures
from pageant.scripts.replay.load import read_load
from pageant.scripts.replay.run import play_model, play_stand_in
from tests.integration.conftest import WINDOW

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 32, "max_num_seqs": 1, "seed": 5}
SECRET = "swordfish"
# The longest first: one that favours the short turns them round.
LENGTHS = (60, 50, 40, 30, 20, 10)
PROMPTS = [list(range(40, 40 + length)) for length in LENGTHS]
STOP = 30


def answer(index: int) -> int:
    """Return how many tokens an answer has."""
    return 4 + 4 * index


def params(index: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=answer(index), ignore_eos=True, stop=(SECRET,))


@pytest.fixture(scope="module", params=["auto", "always"])
def recorded(request, checkpoint, tmp_path_factory):
    """A recording without texts of six requests, one after another; what they said; and one that was aborted."""
    path = tmp_path_factory.mktemp("replay") / "one.recording"

    async def main() -> list[list[int]]:
        async with (
            pageant.Engine(checkpoint.path, placement="one", wire=request.param, **SETTINGS) as engine,
            engine.record(path),
        ):
            tasks = [
                asyncio.ensure_future(engine.complete(prompt, params(index)))
                for index, prompt in enumerate(PROMPTS)
            ]
            outputs = await asyncio.gather(*tasks)
            again = await engine.complete(PROMPTS[0], params(0))  # from the cache
            stream = engine.generate(SECRET, SamplingParams(temperature=0, max_tokens=150, ignore_eos=True))
            async for output in stream:
                if len(output.outputs[0].token_ids) >= 3:
                    break
            await stream.aclose()
            await engine.complete([5, 6, 7], params(0))  # by which the abort has come, too
            return [list(one.outputs[0].token_ids) for one in (*outputs, again)]

    return path, asyncio.run(main())


def test_a_recording_holds_what_was_asked_and_said(recorded):
    path, said = recorded
    load = read_load(path)
    assert load.whole and not load.dropped and not load.begun_before
    assert [submit.prompt_token_ids.tolist() for submit in load.submits[:6]] == PROMPTS
    assert [course.token_ids.tolist() for course in load.courses[:7]] == said
    assert [course.end for course in load.courses] == ["served"] * 7 + ["left", "served"]
    assert load.courses[6].finished.num_cached_tokens >= 32
    assert len(load.costs) > sum(map(len, said)) / 2


def test_without_texts_no_text_is_in_the_file(recorded):
    path, _ = recorded
    assert SECRET.encode() not in path.read_bytes()
    with RecordingReader(path) as reader:
        kinds = {message.kind for message in reader.messages()}
    assert kinds == {"Submit", "Abort", "StepPlan", "StepResult", "OutputBatch"}


def test_the_same_scheduler_does_the_same_again(recorded):
    path, _said = recorded
    load = read_load(path)
    played, _ = play_stand_in(path, load, {}, 1.0)
    compared = comparable([load.courses, played])
    assert compared == [0, 1, 2, 3, 4, 5, 6, 8] and played[7].end == "left"
    found = differences(load.courses, played, compared)
    assert found.other_tokens == 0 and found.started_in_other_order == found.ended_in_other_order == 0
    before, after = figures(load.courses, compared), figures(played, compared)
    assert after.cached_tokens == before.cached_tokens > 0 and after.preemptions == before.preemptions
    again, _ = play_stand_in(path, load, {}, 1.0)
    assert figures(again, compared) == after


def test_shortest_first_turns_the_queue_round(recorded):
    path, _ = recorded
    load = read_load(path)
    played, resolved = play_stand_in(path, load, {"policy": "shortest"}, None)
    options = next(actor.options for actor in resolved.actors if actor.name == "scheduler")
    assert json.loads(options)["policy"] == "shortest" and json.loads(options)["max_num_seqs"] == 1
    # The first runs already when the others come. By prompt and longest answer: 58, 52, 46, 40 tokens to 34.
    longest = [length + answer(index) for index, length in enumerate(LENGTHS)]
    ended = sorted(range(1, 6), key=lambda number: played[number].last_at)
    assert ended == sorted(range(1, 6), key=lambda number: longest[number]) == [5, 4, 3, 2, 1]
    found = differences(load.courses, played, [1, 2, 3, 4, 5])
    assert found.ended_in_other_order == 1.0 and found.other_tokens == 0


def test_a_smaller_pool_preempts_and_nothing_else_changes(recorded):
    """Four prompts fill it; one of them needs a block more for its answer."""
    path, _ = recorded
    load = read_load(path)
    given = {"max_num_seqs": 6, "num_blocks": 8, "max_model_len": 128, "enable_prefix_caching": False}
    played, _ = play_stand_in(path, load, given, None)
    compared = comparable([load.courses, played])
    assert compared == [0, 1, 2, 3, 4, 5, 6, 8]
    before, after = figures(load.courses, compared), figures(played, compared)
    assert before.preemptions == 0 < after.preemptions and after.cached_tokens == 0
    assert differences(load.courses, played, compared).other_tokens == 0


def test_the_same_model_says_the_same_and_another_policy_too(recorded, checkpoint):
    path, said = recorded
    load = read_load(path)
    given = {
        "model": str(checkpoint.path),
        "placement": "one",
        "dtype": "float32",
        "threads": 1,
        "policy": "shortest",
    }
    played, resolved = play_model(path, load, given, 1000.0)
    assert [played[number].token_ids.tolist() for number in range(7)] == said
    assert differences(load.courses, played, comparable([load.courses, played])).other_tokens == 0
    assert (
        json.loads(next(one.options for one in resolved.actors if one.name == "scheduler"))["max_num_seqs"]
        == 1
    )


def test_a_replay_of_a_class_that_is_not_there_is_refused_before_anything_starts(recorded):
    path, _ = recorded
    with pytest.raises(PageantError, match=r"actors.scheduler.class: .*nowhere"):
        play_stand_in(path, read_load(path), {"actors": {"scheduler": {"class": "nowhere:Scheduler"}}}, 1.0)


@pytest.mark.parametrize("steps", [1, 32])
def test_the_planner_serves_as_the_actors_do(recorded, steps):
    """The same requests, step times and sizes: the planner's cores in model time, and actors in simulated time."""
    path, _ = recorded
    load = read_load(path)
    played, _ = play_stand_in(path, load, {"max_steps_per_plan": 1}, 1.0)
    shape = dataclasses.replace(shape_of(load, {}), max_steps_per_plan=steps)
    cluster = PlannedCluster(shape, load.costs)
    outcome = cluster.run(recorded_requests(load))
    began = load.courses[0].submitted_at
    compared = comparable([load.courses, played])
    assert outcome.requests == len(compared) and not outcome.refused
    for times, number in zip(cluster.requests, compared, strict=True):
        assert times.arrived_at == pytest.approx(load.courses[number].submitted_at - began)
        if number < compared[-1]:  # an abort that is not planned comes before the last
            assert (times.output_tokens, times.cached_tokens) == (
                len(played[number].token_ids),
                played[number].finished.num_cached_tokens,
            )
            first, last = played[number].first_at, played[number].last_at
            began_there = played[0].submitted_at
            assert times.first_at == pytest.approx(first - began_there, abs=1e-3)
            assert times.last_at == pytest.approx(last - began_there, abs=1e-3)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No other topology of this process, or of another test's, is known."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def test_a_visitor_records_every_process_also_one_that_was_restarted(checkpoint, alone, tmp_path):
    path = tmp_path / "one.recording"
    settings = SETTINGS | {"max_num_seqs": 4}
    async with pageant.Engine(checkpoint.path, placement="each", **settings) as engine:
        running = choose(str(os.getpid()))
        async with visit(running.endpoint) as found, visit(running.endpoint):  # two at once
            recorder = Recorder(found.node, path, texts=True, kinds=("*",), look=found.look)
            await recorder.start()
            prompt = SECRET + " is what it says"
            first = await engine.complete(
                prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
            )
            await engine.swap("scheduler", options={"policy": "shortest"})
            await engine.complete(prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
            await recorder.stop()
    load = read_load(path)
    assert load.whole and [course.end for course in load.courses] == ["served"] * 2
    assert load.courses[0].token_ids.tolist() == list(first.outputs[0].token_ids)
    assert SECRET.encode() in path.read_bytes()
    with RecordingReader(path) as reader:
        kinds, receivers = set(), set()
        for message in reader.messages():
            reader.decode(message)
            kinds.add(message.kind)
            receivers.add(message.to)
    assert {"Tokenize", "Submit", "Assign", "Assigned", "TokenBatch", "OutputBatch", "Acknowledge"} <= kinds
    assert {"tokenizer", "scheduler", "blocks", "executor/0", "detokenizer", "frontend"} <= receivers
    assert not any(one.startswith("node/") for one in receivers)


def test_the_commands_record_and_replay(checkpoint, alone, tmp_path):
    """Run the commands as a user does: until a signal, and then as JSON."""
    path = tmp_path / "one.recording"
    pageant_command = [sys.executable, "-m", "pageant"]
    with pageant.LLM(checkpoint.path, placement="auto", progress=False, **SETTINGS) as llm:
        recording = subprocess.Popen(
            [*pageant_command, "record", str(path), "--topology", str(os.getpid())],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert "token ids, no texts" in recording.stderr.readline()
        llm.generate(PROMPTS, [params(index) for index in range(6)])
        recording.terminate()
        assert " messages, " in recording.communicate(timeout=120)[1] and recording.returncode == 0
    command = [
        *pageant_command,
        "replay",
        str(path),
        "--policy",
        "shortest",
        "--at-once",
        "--requests",
        "--json",
        "-",
    ]
    replayed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert replayed.returncode == 0, replayed.stderr
    found = json.loads(replayed.stdout)
    assert [run["run"] for run in found["runs"]] == [
        "recorded",
        "replayed as it was",
        "replayed with policy=shortest",
    ]
    assert found["whole"] and found["requests"] == found["compared"] == 6
    assert found["runs"][2]["differences"]["ended_in_other_order"] > 0.5
    assert [one["prompt_tokens"] for one in found["runs"][2]["requests"]] == list(LENGTHS)
    refused = subprocess.run(
        [*pageant_command, "record", str(path)], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2 and "Traceback" not in refused.stderr


def test_the_stand_ins_layers_are_in_the_groups_that_were_recorded(make_checkpoint, tmp_path):
    path = tmp_path / "grouped.recording"

    async def main() -> int:
        settings = {
            "dtype": "float32",
            "threads": 1,
            "num_blocks": 64,
            "block_size": 16,
            "max_model_len": 128,
        }
        checkpoint = make_checkpoint("gemma3")
        async with (
            pageant.Engine(checkpoint.path, placement="one", **settings) as engine,
            engine.record(path),
        ):
            await engine.complete(PROMPTS[0], params(0))
            again = await engine.complete(PROMPTS[0], params(0))
            return again.num_cached_tokens

    cached = asyncio.run(main())
    load = read_load(path)
    played, resolved = play_stand_in(path, load, {}, 1.0)
    options = next(actor.options for actor in resolved.actors if actor.name == "executor/0")
    assert json.loads(options)["windows"] == [None, WINDOW, WINDOW, WINDOW]
    assert [course.end for course in played] == ["served", "served"]
    assert played[1].finished.num_cached_tokens == cached > 0
