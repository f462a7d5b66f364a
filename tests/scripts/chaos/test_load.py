"""Load: what it notices, and what it measures."""

from __future__ import annotations

import asyncio
import time

import pytest

from pageant import CompletionOutput, RequestOutput, SamplingParams
from pageant.protocol.errors import PeerGone
from pageant.scripts.chaos.load import GAP_SECONDS, Asked, Load, Stream, difference, mixed_requests


def output(tokens: list[int], text: str = "ab", new: list[int] | None = None) -> RequestOutput:
    sample = CompletionOutput(
        index=0,
        text=text,
        token_ids=tokens,
        new_text=text if new is None else text[-len(new) :],
        new_token_ids=tokens if new is None else new,
        finish_reason="length",
    )
    return RequestOutput(request_id="r", prompt=None, prompt_token_ids=[1], outputs=[sample], finished=True)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (output([1, 2]), None),
        (output([1, 3]), "sample 0: token_ids is [3], not [2], at 1"),
        (output([1]), "sample 0: token_ids is 1 long, not 2"),
        (output([1, 2], "ax"), "sample 0: text is 'x', not 'b', at 1"),
    ],
)
def test_what_differs_is_named(found, why):
    assert difference(found, output([1, 2])) == why


class Played:
    """An engine that answers with what it was given."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)

    async def generate(self, prompt, params, **settings):
        for one in self.answers.pop(0):
            await asyncio.sleep(0)
            if isinstance(one, Exception):
                raise one
            yield one


ASKED = Asked([1], SamplingParams())


async def test_a_piece_that_comes_twice_or_is_missing_is_noticed():
    for pieces in ([output([1]), output([1, 2], new=[1, 2])], [output([1, 2], new=[2])]):
        with pytest.raises(AssertionError, match="add up"):
            await Stream(Played(pieces), ASKED).read()


async def test_lost_and_changed_requests_are_counted(monkeypatch):
    engine = Played([output([1, 2])], [output([1, 3])], [PeerGone("it went")], [output([1, 2])])
    load = Load(engine, [ASKED], [output([1, 2])])
    slept = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: slept(0))
    load.begin()
    while load.requests < 3:
        await slept(0)
    await load.end()
    assert load.changed == ["request 0: sample 0: token_ids is [3], not [2], at 1"]
    assert load.lost == ["request 0: PeerGone: it went"]
    assert load.tokens == 2 * (load.requests - 1)


async def test_the_pause_is_the_longest_wait_that_ended_after_the_kill():
    stream = Stream(Played(), ASKED)
    load = Load(Played(), [], [])
    load._streams[0] = stream
    stream.gaps = [(1.0, 9.0), (10.0, 12.0), (13.0, 14.0)]
    assert [load.pause(since) for since in (5.0, 9.5, 12.5, 20.0)] == [8.0, 2.0, 1.0, 0.0]
    stream.last_at -= 2 * GAP_SECONDS
    stream._came()
    assert len(stream.gaps) == 4


def test_of_those_that_show_nothing_before_their_end_nobody_says_that_they_pause():
    stream = Stream(Played(), Asked([1], SamplingParams(n=1, best_of=2)))
    stream.last_at -= 2 * GAP_SECONDS
    stream._came()
    assert stream.gaps == []


def test_requests_are_of_every_kind_and_the_same_each_time():
    asked = mixed_requests(64, 100)
    assert asked == mixed_requests(64, 100)
    for trait in ("logprobs", "prompt_logprobs", "stop", "bad_words", "logit_bias", "structured_outputs"):
        assert any(getattr(one.params, trait) for one in asked), trait
    assert {one.params.n for one in asked} == {1, 2, 3} and {type(one.prompt) for one in asked} == {str, list}
    assert all(one.params.seed is not None for one in asked)


async def test_gaps_are_those_of_the_named_streams_in_a_span_of_time():
    answer = [[output([1]), output([1, 2], new=[2])]]
    load = Load(Played(*answer), [ASKED], [output([1, 2])], gap_seconds=0.0)
    began = time.monotonic()
    load.begin()
    await asyncio.sleep(0)  # the request is made
    await load.end()
    ended = time.monotonic()
    found = load.gaps({"stream-0"}, began, ended)
    assert len(found) == 2 and 0 < sum(found) <= ended - began
    assert load.gaps({"stream-1"}, began, ended) == load.gaps({"stream-0"}, ended, ended + 1) == []
