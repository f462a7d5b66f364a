"""Planned replicas and clusters in model time, and the search for the fewest that hold a service level."""

from __future__ import annotations

import dataclasses

import pytest

from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.scripts.cli import main
from pageant.scripts.loads import Arrivals, Lengths
from pageant.scripts.planning.cluster import PlannedCluster
from pageant.scripts.planning.outcome import Outcome
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.planning.requests import LoadShape, PlannedRequest
from pageant.scripts.planning.search import ServiceLevel, search, what_binds
from pageant.scripts.replay.costs import Fitted, StepCosts

SHAPE = ReplicaShape(num_blocks=512, block_size=16, max_model_len=1024, max_num_batched_tokens=256)
COSTS = StepCosts()
COSTS.fitted = Fitted(constant=0.01, token=1e-4)


def serve(requests: list[PlannedRequest], replicas: int = 1, shape: ReplicaShape = SHAPE) -> Outcome:
    return PlannedCluster(shape, COSTS, (1.0,) * replicas).run(requests)


def drawn(rate: float, count: int = 200, **settings: int) -> list[PlannedRequest]:
    lengths = Lengths.parse("64:256", "input_tokens"), Lengths.parse("16:48", "output_tokens")
    return list(LoadShape(Arrivals(rate), *lengths, **settings).draw(count))


def test_one_request_takes_as_long_as_its_steps():
    """A prompt of 300 tokens takes a step of 256 and one of 44; each further token is a step."""
    outcome = serve([PlannedRequest(1.0, int32(range(1, 301)), output_tokens=5, most_tokens=90)])
    assert outcome.first_token.p50 == pytest.approx(2 * 0.01 + 300e-4)
    assert outcome.per_token.p50 == pytest.approx(0.01 + 1e-4)
    assert outcome.inter_token.p99 == pytest.approx(0.01 + 1e-4)
    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.cached_tokens) == (5, 300, 0)
    assert outcome.seconds == pytest.approx(0.05 + 4 * 0.0101)


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_plans_of_several_steps_give_the_times_of_single_steps(async_scheduling):
    """One request: the very times. Many: the same but for rows of requests that ended while another was planned in."""
    several = dataclasses.replace(SHAPE, async_scheduling=async_scheduling)
    single = dataclasses.replace(several, max_steps_per_plan=1)
    asked = drawn(4.0, 60)
    for requests, error in ((asked[:1], 1e-9), (asked, 0.02)):
        one, other = serve(requests, shape=single), serve(requests, shape=several)
        assert (one.output_tokens, one.cached_tokens) == (other.output_tokens, other.cached_tokens)
        for name in ("first_token", "inter_token", "whole"):
            spread, expected = (dataclasses.astuple(getattr(outcome, name)) for outcome in (other, one))
            assert spread == pytest.approx(expected, rel=error)
        assert other.busy == pytest.approx(one.busy, rel=error)


def test_a_prompt_that_comes_again_is_cached_but_for_its_last_token():
    prompt = int32(range(1, 101))
    outcome = serve([PlannedRequest(at, prompt, 4, 4) for at in (0.0, 10.0)])
    assert outcome.cached_tokens == 99


def test_more_replicas_serve_more_and_share_prefixes_out():
    asked = drawn(40.0, prefix_tokens=256, prefixes=8)
    one, four = serve(asked), serve(asked, 4)
    assert one.output_tokens == four.output_tokens == sum(request.output_tokens for request in asked)
    assert four.first_token.p99 < one.first_token.p99 and four.busy < one.busy
    assert four.hit_rate > 0.5 and four.busiest <= 1.5 * four.busy


def test_a_pool_that_is_short_preempts_and_serves_all_the_same():
    asked = drawn(1000.0)
    outcome = serve(asked, shape=dataclasses.replace(SHAPE, num_blocks=66))
    assert outcome.preemptions > 0 and not outcome.refused and what_binds(outcome) == "KV memory"
    assert outcome.output_tokens == sum(request.output_tokens for request in asked)


def test_the_fewest_replicas_are_found_and_one_fewer_does_not_hold():
    level = ServiceLevel.parse("ttft=100ms,itl=0.06s")
    plan = search(lambda replicas, factor: serve(drawn(60.0 * factor), replicas), level, 16)
    assert plan.replicas is not None and plan.replicas > 1
    assert not level.broken(plan.tried[plan.replicas])
    assert plan.next_smaller is plan.tried[plan.replicas - 1]
    assert level.broken(plan.next_smaller)
    assert plan.breaks_at is not None and level.broken(plan.breaks_at[1])


def test_a_level_below_a_single_step_is_held_by_no_number():
    level = ServiceLevel.parse("itl=5ms")
    plan = search(lambda replicas, factor: serve(drawn(5.0, 50), replicas), level, 4)
    assert plan.replicas is None and sorted(plan.tried) == [1, 2, 4]
    assert what_binds(plan.tried[4]) == "the time of a step"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tfft=5ms", "no measure 'tfft'.*ttft"),
        ("ttft", "'ttft' is no bound; expected such as ttft=500ms"),
        ("ttft=5", "'ttft=5' is no bound"),
        ("ttft=0ms", "'ttft=0ms' is no bound"),
        ("ttft=5ms,", "no measure ''"),
    ],
)
def test_what_is_no_service_level_is_refused(text, message):
    with pytest.raises(BadRequest, match=message):
        ServiceLevel.parse(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one of --replicas"),
        (["--slo", "ttft=1s", "--replicas", "2"], "expected one of --replicas"),
        (["--replicas", "0"], "replicas is 0"),
        (["--replicas", "1", "--rate", "0"], "rate is 0"),
        (["--replicas", "1"], "there is no load"),
        (["--replicas", "1", "--input-tokens", "9"], "a drawn load needs a rate"),
        (["--replicas", "1", "--rate", "1", "--pipeline-parallel", "2"], "pipeline_parallel is not modelled"),
        (["--replicas", "1", "--rate", "1", "--store-memory", "1GiB"], "store_memory is not modelled"),
        (
            ["--replicas", "1", "--rate", "1", "--set", "speculation.method=ngram"],
            "speculation is not modelled",
        ),
        (
            ["--replicas", "1", "--rate", "1", "--set", "replicas.prefill.count=1"],
            "replicas are of several kinds, which a plan is told otherwise; expected --prefills",
        ),
        (
            ["--replicas", "1", "--rate", "1", "--set", "actors.store.options.memory=1GiB"],
            "an actor called store is not modelled",
        ),
        (
            ["--replicas", "2", "--rate", "1", "--prefills", "2"],
            "prefills is 2; expected at least 0 and at most 1",
        ),
        (
            ["--replicas", "2", "--rate", "1", "--copy-rate", "0"],
            "copy_rate is 0; expected tokens per second",
        ),
        (["--slo", "ttft=1s", "--recording", "nowhere.recording"], "nowhere.recording: No such file"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pageant", "plan", *arguments])
    assert main() != 0
    assert message in capsys.readouterr().err.replace("\n", " ")
