"""The detokenizer's stream: openings, tokens and ends, once each, also for a new detokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.scheduler.outputs import PROMPT_TAIL, TokenOutputs
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.arrays import int32, int64
from pageant.protocol.logprobs import RowLogprobs
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished, spans_within


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
        outputs.update_facts(each)
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
    outputs.update_facts(request(1))
    assert not outputs


def test_what_is_known_at_admission_waits_for_the_first_token(outputs):
    slow, quick = request(1), request(2)
    for each in (slow, quick):
        outputs.open(each)
        outputs.update_facts(each)
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
    outputs.update_facts(stopped)  # again, after a preemption
    outputs.tokens(int64([stopped.serial]), int32([6]))
    outputs.drop(stopped)
    assert not outputs
    assert not outputs._facts


def row_logprobs(count):
    numbers = np.arange(count)
    columns = numbers.astype(np.int32), numbers.astype(np.float32)
    return RowLogprobs(
        columns[0], columns[1], columns[0], np.zeros(count, np.int32), *(c[:0] for c in columns)
    )


def draw(outputs, request, token):
    request.output.append(token)
    outputs.tokens(int64([request.serial]), int32([token]))


def test_a_new_detokenizer_is_told_everything_of_whoever_is_open(outputs):
    waiting, running = request(1), request(2)
    running.admitted_at = running.first_token_at = 0.0
    for each in (waiting, running):
        outputs.open(each)
    for token in (4, 5):
        outputs.logprobs(running, row_logprobs(1))
        draw(outputs, running, token)
        outputs.take()
    outputs.prompt_logprobs(waiting, row_logprobs(2))
    outputs.reopen([waiting, running])
    batch = outputs.take()
    assert batch.start == batch.number == 3, "what came before was for the former"
    assert [opened.request_id for opened in batch.opened] == ["r1", "r2"]
    assert (batch.serials.tolist(), batch.token_ids.tolist(), list(batch.facts)) == ([2], [4, 5], [0])
    assert len(batch.logprobs.token_ids) == 2
    assert outputs.stream.unacknowledged == 1
    draw(outputs, waiting, 6)
    assert len(outputs.take().prompt_logprobs.token_ids) == 2, "they wait for a token"


def test_what_is_drawn_meanwhile_follows_what_is_told_again(outputs):
    one, other = request(1), request(2)
    one.output = [4, 5]
    outputs.reopen([one, other])
    outputs.tokens(int64([1, 2]), int32([6, 7]))
    batch = outputs.take()
    assert (batch.serials.tolist(), batch.counts.tolist()) == ([1, 2], [3, 1])
    assert batch.token_ids.tolist() == [4, 5, 6, 7]


def test_output_that_a_request_brought_along_is_no_row(outputs):
    resumed = request(1)
    resumed.output, resumed.num_resumed = [4, 5, 6], 2
    outputs.reopen([resumed])
    batch = outputs.take()
    assert batch.opened[0].token_ids.tolist() == [4, 5]
    assert batch.token_ids.tolist() == [6]


def test_output_is_told_with_the_weights_that_drew_it(outputs):
    one = request(1)
    outputs.open(one)
    for version, tokens in (("a", [5, 6]), ("a", [7]), ("b", []), ("c", [8])):
        one.draw_with(version)
        outputs.update_facts(one)
        one.output += tokens
        for token in tokens:
            outputs.tokens(int64([1]), int32([token]))
    spans = outputs.take().facts[0].weight_versions
    assert [(span.version, span.start) for span in spans] == [("a", 0), ("c", 3)], "nothing was drawn by b"
    assert spans_within(spans, 3) == spans[:1] and spans_within(spans, 0) == ()
    outputs.reopen([one])
    one.admitted_at = 0.0
    outputs.reopen([one])
    assert outputs.take().facts[0].weight_versions == spans
