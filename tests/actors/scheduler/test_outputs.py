"""The detokenizer's stream: openings, tokens and ends, once each, also for a new detokenizer."""

from __future__ import annotations

import pytest

from pageant.actors.scheduler.outputs import PROMPT_TAIL, TokenOutputs
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.arrays import int32, int64
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished


def request(serial, prompt=(1, 2, 3)):
    return ScheduledRequest(
        request_id=f"r{serial}",
        frontend="f",
        serial=serial,
        arrival=serial,
        prompt=int32(prompt),
        params=SamplingParams(stop=("x",), min_tokens=2),
        end_tokens=frozenset(),
    )


@pytest.fixture
def outputs():
    return TokenOutputs()


def test_a_step_is_one_batch_by_columns(outputs):
    one, two = request(1), request(2, range(40))
    for each in (one, two):
        outputs.open(each)
        outputs.learned(each)
    outputs.tokens(int64([one.serial, two.serial]), int32([7, 8]))
    outputs.tokens(int64([two.serial]), int32([9]))
    outputs.finish(two, Finished(reason="length", num_output_tokens=2))
    batch = outputs.take()
    assert batch.number == 1
    assert [opened.request_id for opened in batch.opened] == ["r1", "r2"]
    assert batch.opened[1].prompt_tail.tolist() == list(range(40))[-PROMPT_TAIL:]
    assert (batch.opened[0].stop, batch.opened[0].min_tokens) == (("x",), 2)
    assert (batch.serials.tolist(), batch.counts.tolist()) == ([1, 2], [1, 2])
    assert batch.token_ids.tolist() == [7, 8, 9]
    assert list(batch.finished) == [1]
    assert sorted(batch.facts) == [0, 1]


def test_without_tokens_or_ends_there_is_nothing_to_send(outputs):
    outputs.open(request(1))
    outputs.learned(request(1))
    assert not outputs


def test_what_is_known_at_admission_waits_for_the_first_token(outputs):
    slow, quick = request(1), request(2)
    for each in (slow, quick):
        outputs.open(each)
        outputs.learned(each)
    outputs.tokens(int64([quick.serial]), int32([5]))
    assert outputs.take().facts.keys() == {0}
    outputs.tokens(int64([slow.serial]), int32([6]))
    assert outputs.take().facts.keys() == {0}
    assert outputs._facts == {}


def test_of_a_request_that_the_detokenizer_ended_nothing_is_kept(outputs):
    stopped = request(1)
    outputs.open(stopped)
    outputs.tokens(int64([stopped.serial]), int32([5]))
    outputs.take()
    outputs.learned(stopped)  # again, after a preemption
    outputs.tokens(int64([stopped.serial]), int32([6]))
    outputs.drop(stopped)
    assert not outputs
    assert not (outputs._facts or outputs._kept)


def test_an_end_is_kept_until_it_is_acknowledged(outputs):
    for serial in (1, 2):
        outputs.open(request(serial))
        outputs.finish(request(serial), Finished(reason="abort"))
        outputs.take()
    outputs.acknowledge(1)
    assert outputs._kept.keys() == {2}
    outputs.acknowledge(2)
    assert not (outputs._kept or outputs._ends or outputs.stream.unacknowledged)


def test_a_new_detokenizer_is_told_to_end_what_the_former_may_not_have_ended(outputs):
    told, untold, running = request(1), request(2), request(3)
    for each in (told, untold, running):
        outputs.open(each)
    outputs.finish(told, Finished(reason="length"))
    outputs.take()
    outputs.acknowledge(1)
    outputs.tokens(int64([untold.serial]), int32([4]))
    outputs.finish(untold, Finished(reason="length"))
    outputs.take()
    outputs.learned(running)
    outputs.restart("it died")
    batch = outputs.take()
    assert batch.number == 1, "for a new receiver numbers begin again"
    assert [opened.request_id for opened in batch.opened] == ["r2", "r3"]
    assert [(end.reason, end.message) for end in batch.finished.values()] == [("error", "it died")] * 2
    assert not len(batch.token_ids)
    outputs.acknowledge(1)
    assert not (outputs._kept or outputs._facts)
