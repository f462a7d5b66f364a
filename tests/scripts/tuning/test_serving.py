"""Requests that a tune drives a server with, over the wire."""

from __future__ import annotations

import pytest

from pageant.protocol.arrays import int32
from pageant.protocol.errors import StartupError
from pageant.scripts.planning.driving import drive
from pageant.scripts.planning.outcome import RequestTimes, summed_up
from pageant.scripts.planning.requests import PlannedRequest
from pageant.scripts.planning.search import ServiceLevel
from pageant.scripts.tuning.serving import server_of
from pageant.scripts.tuning.simulating import Trial
from pageant.scripts.tuning.space import Candidate, Layout


async def test_each_request_is_asked_for_its_tokens_and_timed(wire):
    def answer(path, body):
        pieces = wire.spoken(*"ab", usage=(len(body["prompt"]), body["max_tokens"]))
        return [wire.HEAD, wire.chunked(*pieces)]

    requests = [PlannedRequest(at, int32([11, 12, 13]), 2, 9) for at in (0.0, 0.01)]
    async with wire.serving(answer) as (server, url):
        times = await drive(url, requests, requests[:1])
    assert [body["prompt"] for body in server.bodies] == [[11, 12, 13]] * 3  # one of them to warm up
    assert all(body["max_tokens"] == 2 and body["ignore_eos"] and body["stream"] for body in server.bodies)
    assert [one.output_tokens for one in times] == [2, 2] and not any(one.refused for one in times)
    assert all(one.arrived_at <= one.first_at <= one.last_at and len(one.gaps) == 1 for one in times)


async def test_a_request_that_fails_was_not_served(wire):
    async with wire.serving(lambda path, body: [wire.HEAD, None]) as (_, url):
        times = await drive(url, [PlannedRequest(0.0, int32([11]), 2, 2)])
    assert times[0].refused
    level = ServiceLevel.parse("ttft=1s")
    trial = Trial.of(Candidate(Layout(1, 1)), summed_up(times, 1, (0.0,), 0.0, 0), times, level)
    assert trial.good == 0 and not trial.holds and trial.broken == {"refused": 2.0}


def test_a_request_holds_a_level_by_its_own_times():
    one = RequestTimes(0.0, 10)
    one.output([1.0, 1.1, 1.2, 1.5])
    for level, held in (("ttft=1s", True), ("ttft=999ms", False), ("itl=350ms", True), ("itl=250ms", False)):
        assert ServiceLevel.parse(level).is_held_for(one) is held
    assert ServiceLevel.parse("tpot=167ms,e2e=1.5s").is_held_for(one)
    assert not ServiceLevel.parse("tpot=166ms,e2e=1.5s").is_held_for(one)
    assert not ServiceLevel.parse("ttft=1s").is_held_for(RequestTimes(0.0, 10))


def test_a_server_that_does_not_start_says_why(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("model: /nowhere/at/all\n")
    with pytest.raises(StartupError, match="/nowhere/at/all: no such folder"), server_of(path):
        pass
