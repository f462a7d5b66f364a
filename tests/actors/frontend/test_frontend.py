"""The frontend actor: what it tells the scheduler of its requests, and how those end that never came so far."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from pageant.actors.frontend.frontend import Frontend
from pageant.actors.frontend.peers import CAST
from pageant.actors.frontend.requests import Opening
from pageant.actors.runtime.clock import MonotonicClock
from pageant.protocol.arrays import int32
from pageant.protocol.errors import PeerGone, RequestExpired
from pageant.protocol.fronting import ServedModel
from pageant.protocol.roles import ROLES
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Abort, Submit
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tokenizing import Tokenized

MODEL = ServedModel(
    **{"name": "m", "replica": "", "folder": "m", "vocab_size": 99, "max_model_len": 16},
    **{"max_logprobs": 0, "generation_config": "none"},
)


class Sink:
    """Sink that keeps what a user hears of one request."""

    def __init__(self):
        self.hub = self
        self.prompt_token_ids, self.error = None, None

    def flush(self):
        pass

    def accepted(self, prompt, prompt_token_ids):
        self.prompt_token_ids = prompt_token_ids

    def failed(self, error):
        self.error = error


class Told:
    """A frontend whose tokenizer knows letters, and what it says to others."""

    def __init__(self):
        self.said, self.begun = [], []
        self.actor = Frontend(Frontend.Options(served=(MODEL,)))
        self.tokens = lambda text: [ord(letter) - 64 for letter in text]
        self.actor._cell = SimpleNamespace(
            name="frontend",
            incarnation=1,
            random=random.Random(0),
            spawn=self.begun.append,
            node=SimpleNamespace(
                tell=lambda address, message, cell: self.said.append(message),
                ask=self.ask,
                clock=MonotonicClock(),
            ),
        )

    async def ask(self, address, request, timeout, cell, *, again, deaths_max):
        return Tokenized(token_ids=int32(self.tokens(request.text)), text=request.text)

    def up(self, *roles):
        for role in roles or CAST:
            self.actor.peer_up(ActorUp(address=role, incarnation=1, features=tuple(ROLES[role].features)))
        return self

    async def open(self, name="r", prompt=(1, 2), settings=None, **params):
        """Hands over a request, and waits until it is submitted, or has failed. Its sink."""
        sink = Sink()
        asked = np.array(prompt, np.int32) if isinstance(prompt, tuple) else prompt
        params = SamplingParams(seed=1, **params)
        self.actor.open(Opening(name, asked, params, sink, {} if settings is None else settings))
        while self.begun:
            await self.begun.pop()
        return sink

    def lose(self, role):
        self.actor.peer_down(ActorDown(address=role, incarnation=1, reason="it failed twice", final=True))

    def of(self, kind):
        return [message for message in self.said if isinstance(message, kind)]


@pytest.fixture
def told():
    return Told()


async def test_each_request_of_a_batch_is_a_part_of_what_it_is_a_part_of_at_its_clients(told):
    parents, settings = [], {"traceparent": "00-1-2-01", "priority": 3}
    told.up().actor._tracing = SimpleNamespace(begin=parents.append)
    for name in "abc":
        await told.open(name, settings=settings)
    assert parents == ["00-1-2-01"] * 3
    assert [submit.priority for submit in told.of(Submit)] == [3, 3, 3]


async def test_a_bad_word_without_tokens_is_passed_over(told):
    told.up().tokens = lambda text: [1] if text.strip() == "a" else []
    assert (await told.open(bad_words=["\u0301", "a"])).error is None
    assert told.of(Submit)[0].bad_words == ((1,),)


async def test_a_deadline_counts_also_while_somebody_is_waited_for(told):
    told.up("tokenizer", "scheduler", "blocks", "detokenizer")  # and the executor is being restarted
    sink = await told.open(settings={"deadline": 1e-3})
    assert isinstance(sink.error, RequestExpired) and not told.said
    assert (await told.up("executor").open(settings={"deadline": 1000.0})).error is None
    assert 0 < told.of(Submit)[0].deadline <= 1000


async def test_what_fails_here_is_not_computed_on(told):
    sink = await told.up().open(n=2)
    names = tuple(submit.request_id for submit in told.of(Submit))
    told.lose("executor")
    assert isinstance(sink.error, PeerGone) and "executor is down and will not be restarted" in str(
        sink.error
    )
    assert [abort.request_ids for abort in told.of(Abort)] == [names]


async def test_at_its_own_end_the_scheduler_needs_no_word(told):
    sink = await told.up().open()
    await told.actor.on_stop()
    assert isinstance(sink.error, PeerGone) and not told.of(Abort) and not told.actor.num_open


async def test_a_tokenizer_that_is_lost_is_missed_by_those_who_still_need_it_alone(told):
    going = await told.up().open("going")
    waiting = Sink()
    told.actor.open(Opening("waiting", np.array([1], np.int32), SamplingParams(temperature=0.0), waiting))
    told.lose("tokenizer")
    assert going.error is None and isinstance(waiting.error, PeerGone) and not told.of(Abort)
    while told.begun:
        await told.begun.pop()
    told.lose("blocks")
    assert "blocks is down" in str(going.error)
