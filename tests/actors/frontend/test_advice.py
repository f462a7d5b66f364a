"""The router's advice: asked for all of a turn at once, and done without where there is none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from pageant.actors.frontend.advice import NO_ADVICE, Advice, Advised, advised_submits
from pageant.protocol.arrays import int32, int64
from pageant.protocol.embedding import NAME_BYTES, PromptEmbeds
from pageant.protocol.errors import DeadlineExceeded, PeerGone, RemoteError
from pageant.protocol.routing import Routed
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Submit


def submit(name, *prompt, **settings):
    params = SamplingParams(max_tokens=7, seed=1)
    return Submit(request_id=name, frontend="f", prompt_token_ids=int32(prompt), params=params, **settings)


class Asking:
    """A frontend, and a router that answers as it is told."""

    def __init__(self, answer):
        self.asked, self.answer = [], answer
        frontend = SimpleNamespace(ask=self.ask, spawn=asyncio.ensure_future)
        self.advice = Advice(frontend, "small/", lambda: True)

    async def ask(self, address, question, timeout):
        assert address == "router" and timeout < 1
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_requests_of_one_turn_are_one_question():
    answer = Routed(places=("a/", "b/"), tickets=int64([5, 6]), expected_tokens=int32([1, 2]))
    stage = Asking(answer)
    requests = (submit("x", 1, 2, cache_salt="s"), submit("y", 3, adapter="key", tenant="t"))
    found = await asyncio.gather(*(stage.advice.ask(one) for one in requests))
    assert found == [Advised("a/", 5, 1), Advised("b/", 6, 2)]
    (question,) = stage.asked
    assert question.token_ids.tolist() == [1, 2, 3] and question.lengths.tolist() == [2, 1]
    assert (question.model, question.max_tokens.tolist()) == ("small/", [7, 7])
    assert (question.salts, question.adapters) == (("s", None), (None, "key"))
    assert (question.tenants, question.text_tokens.tolist()) == (("", "t"), [2, 1])


@pytest.mark.parametrize(
    ("places", "attended", "count"), [(None, False, 0), ([2, 4], False, 2), ([0], False, 0), ([0], True, 0)]
)
async def test_a_question_says_where_the_text_before_embeddings_ends(places, attended, count):
    rows = np.zeros((5 if places is None else len(places), 4), np.float32)
    embeds = PromptEmbeds(
        rows=rows,
        names=np.zeros(len(rows) * NAME_BYTES, np.uint8),
        places=None if places is None else int32(places),
        attended=attended,
    )
    stage = Asking(Routed(places=("a/",), tickets=int64([5]), expected_tokens=int32([1])))
    await stage.advice.ask(submit("x", 1, 2, 3, 4, 5, prompt_embeds=embeds))
    assert stage.asked[0].text_tokens.tolist() == [count]


@pytest.mark.parametrize(
    "answer",
    [
        PeerGone("it died"),
        DeadlineExceeded("it is slow"),
        RemoteError("router", "KeyError", "x"),
        Routed(places=(), tickets=int64(), expected_tokens=int32()),
    ],
)
async def test_a_router_that_does_not_answer_is_done_without(answer):
    assert await Asking(answer).advice.ask(submit("x", 1)) == NO_ADVICE


async def test_a_router_that_is_down_is_not_asked():
    advice = Advice(SimpleNamespace(), "", lambda: False)
    assert await advice.ask(submit("x", 1)) == NO_ADVICE


async def test_whoever_leaves_while_the_router_is_asked_spoils_nobody_elses_answer():
    stage = Asking(Routed(places=("a/", "b/"), tickets=int64([5, 6]), expected_tokens=int32([1, 2])))
    leaving, staying = (asyncio.ensure_future(stage.advice.ask(submit(name, 1))) for name in "xy")
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == Advised("b/", 6, 2)


def test_samples_of_a_prompt_have_one_ticket_and_find_it_computed():
    found = advised_submits([submit("x", 1, 2), submit("y", 1, 2)], Advised("a/", 9, 2))
    assert [(one.ticket, one.expected_tokens) for one in found] == [(9, 2), (0, 0)]
    alone = advised_submits([submit("x", 1, 2)], NO_ADVICE)
    assert [(one.ticket, one.expected_tokens) for one in alone] == [(0, None)]
