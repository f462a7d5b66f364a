"""Requests of a tune: drawn and recorded ones, whose parts have nothing in common."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.tuning.workloads import WORKLOADS, Drawn, Part, Recorded, named


def told(requests) -> list[tuple]:
    return [(one.at, one.prompt.tolist(), one.output_tokens) for one in requests]


def test_the_same_seed_draws_the_same_and_each_part_its_own():
    one, same = (Drawn(named("mixed"), 5.0, vocabulary=100) for _ in range(2))
    for part in Part:
        assert told(one.requests(part, 10.0)) == told(same.requests(part, 10.0))
    prompts = [{tuple(each.prompt.tolist()) for each in one.requests(part, 10.0)} for part in Part]
    assert not prompts[0] & prompts[1] and not prompts[1] & prompts[2] and not prompts[0] & prompts[2]


@pytest.mark.parametrize("name", WORKLOADS)
def test_named_workloads_arrive_at_their_rate_within_their_lengths(name):
    workload = named(name)
    found = Drawn(workload, 20.0, vocabulary=50).requests(Part.CHOICE, 100.0)
    assert found[-1].at <= 100 and len(found) == pytest.approx(2000, rel=0.2)
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert max(len(one.prompt) + one.output_tokens for one in found) <= workload.most_tokens
    assert all(one.prompt.min() >= 10 and one.prompt.max() < 50 for one in found)
    assert sum(one.share for one in workload.kinds) == pytest.approx(1)


def test_lengths_are_scaled_down_to_what_a_model_takes():
    for workload in WORKLOADS.values():
        assert workload.fitted(256).most_tokens <= 256
        assert workload.fitted(100_000) is workload


def test_a_workload_brings_at_least_one_request():
    assert len(Drawn(named("chat"), 0.001).requests(Part.SEARCH, 1.0)) == 1


def test_an_unknown_workload_is_refused_with_those_that_there_are():
    with pytest.raises(BadRequest, match=r"no workload 'chats'.*chat"):
        named("chats")


def recording(count: int):
    """A recording with a request a second; those with odd numbers have two tokens."""
    courses = [
        SimpleNamespace(served=True, token_ids=[1] * (1 + number % 2), submitted_at=5.0 + number)
        for number in range(count)
    ]
    submits = [
        SimpleNamespace(params=SamplingParams(max_tokens=4), prompt_token_ids=int32([number, 7]))
        for number in range(count)
    ]
    return SimpleNamespace(courses=courses, submits=submits)


def test_a_recording_is_shared_out_in_thirds_that_each_begin_at_once():
    source = Recorded(recording(9))
    parts = [source.requests(part, 100.0) for part in Part]
    assert [[int(one.prompt[0]) for one in part] for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [one.at for one in parts[2]] == [0.0, 1.0, 2.0]
    assert [one.output_tokens for one in parts[0]] == [1, 2, 1]
    assert len(source.requests(Part.SEARCH, 1.5)) == 2
    assert [one.at for one in source.requests(Part.SEARCH, 100.0, 2.0)] == [0.0, 0.5, 1.0]


def test_a_recording_is_stretched_to_a_rate():
    source = Recorded(recording(9), rate=9 / 4)
    assert source.rate == 9 / 4
    assert [one.at for one in source.requests(Part.CHOICE, 100.0)] == pytest.approx([0.0, 0.5, 1.0])


def test_a_recording_of_two_requests_is_refused():
    with pytest.raises(BadRequest, match=r"holds 2 requests .* expected at least 3"):
        Recorded(recording(2))
