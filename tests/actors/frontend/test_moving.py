"""Where a frontend submits its requests when a model has replicas, and where they go on."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from pageant.actors.frontend.frontend import Frontend
from pageant.actors.frontend.moving import DRAINED_AT_ONCE
from pageant.actors.frontend.requests import Opening
from pageant.actors.runtime.address import replica_of, role_of
from pageant.actors.runtime.clock import MonotonicClock
from pageant.protocol.arrays import int32
from pageant.protocol.errors import GivenUp
from pageant.protocol.fronting import ServedModel
from pageant.protocol.replicas import CLOSED, DRAINING, MOVES, MOVING, Move, Moved
from pageant.protocol.roles import ROLES
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Abort, Finished, OutputBatch, Submit
from pageant.protocol.supervision import REMOVED, SWAPPED, ActorChanged, ActorDown, ActorUp

CAST = ("scheduler", "blocks", "executor/0", "detokenizer")


class Sink:
    """Sink that keeps what a user hears of one request."""

    def __init__(self):
        self.hub, self.error, self.token_ids, self.ends, self.text = self, None, [], [], ""

    def flush(self):
        pass

    def accepted(self, prompt, prompt_token_ids):
        pass

    def output(self, arrived):
        self.token_ids += arrived.token_ids
        self.text += arrived.text
        self.ends += [arrived.finished.reason] if arrived.finished is not None else []

    def failed(self, error):
        self.error = error


class Stage:
    """A frontend of a model with replicas, and what it says to whom."""

    def __init__(self, model=""):
        served = ServedModel(
            **{"name": "m", "replica": model, "folder": "m", "vocab_size": 99, "max_model_len": 64},
            **{"max_logprobs": 0, "generation_config": "none", "is_replicated": True},
        )
        self.model, self.said, self.begun = model, [], []
        self.actor = Frontend(Frontend.Options(served=(served,)))
        self.numbers = {}
        self.cell = self.actor._cell = SimpleNamespace(
            name="frontend",
            incarnation=1,
            random=random.Random(0),
            spawn=self.begun.append,
            sender="",
            sender_incarnation=1,
            node=SimpleNamespace(
                tell=lambda address, message, cell: self.said.append((address, message)),
                clock=MonotonicClock(),
            ),
        )
        self.up("tokenizer")

    def up(self, *names, incarnation=1, **facts):
        for name in names:
            features = tuple(ROLES[role_of(name)].features)
            own = {MOVES: 1, **facts} if role_of(name) == "scheduler" else facts
            self.actor.peer_up(
                ActorUp(address=self.model + name, incarnation=incarnation, features=features, facts=own)
            )

    def replica(self, number, *but, incarnation=1, **facts):
        roles = [role for role in CAST if role not in but]
        self.up(*(f"replica-{number}/{role}" for role in roles), incarnation=incarnation, **facts)

    def down(self, name, reason="it was killed", **keywords):
        self.actor.peer_down(ActorDown(address=self.model + name, incarnation=1, reason=reason, **keywords))

    async def open(self, name="r", prompt=(1, 2, 3), settings=None, **params):
        sink = Sink()
        params = SamplingParams(**{"seed": 1, "max_tokens": 20, **params})
        self.actor.open(Opening(name, np.array(prompt, np.int32), params, sink, settings or {}))
        while self.begun:
            await self.begun.pop()
        return sink

    def told(self, kind, since=0):
        """What of that kind it said, with the replica that it said it to."""
        return [
            (replica_of(to).removeprefix(self.model), one)
            for to, one in self.said[since:]
            if isinstance(one, kind)
        ]

    def hear(self, replica, wire_id, tokens, start=0, finished=None, text=""):
        """Some output of a replica's detokenizer."""
        self.cell.sender = f"{self.model}replica-{replica}/detokenizer"
        number = self.numbers[replica] = self.numbers.get(replica, 0) + 1
        self.actor.outputs(
            OutputBatch(
                number=number,
                **{"request_ids": (wire_id,), "texts": (text,), "text_starts": int32([0])},
                **{
                    "token_starts": int32([start]),
                    "counts": int32([len(tokens)]),
                    "token_ids": int32(tokens),
                },
                finished={} if finished is None else {0: finished},
            )
        )

    def hear_moved(self, replica, names, deaths=0, unknown=()):
        self.cell.sender = f"{self.model}replica-{replica}/scheduler"
        columns = {"deaths": int32([deaths] * len(names)), "died_at": int32([7 * deaths] * len(names))}
        self.actor.moved(Moved(request_ids=tuple(names), **columns, unknown=tuple(unknown)))


@pytest.fixture(params=["", "small/"])
def stage(request):
    return Stage(request.param)


async def test_requests_go_where_the_fewest_tokens_are(stage):
    stage.replica(0)
    stage.replica(1)
    await stage.open("long", prompt=[1] * 40)
    for name in "abc":
        await stage.open(name)
    places = [place for place, _ in stage.told(Submit)]
    long, others = places[0], places[1:]
    assert others.count(long) == 1, "the other has two short ones before this has a second"
    assert stage.actor.num_open == 4


async def test_a_request_waits_for_a_whole_replica(stage):
    stage.replica(0, "executor/0")
    await stage.open("gone", settings={"deadline": 0.0})
    assert not stage.told(Submit)
    stage.begun.clear()
    stage.replica(1)
    await stage.open()
    assert [place for place, _ in stage.told(Submit)] == ["replica-1/"]


async def test_the_requests_of_an_executor_that_died_go_on_with_what_they_are_suspected_of(stage):
    stage.replica(0)
    sink = await stage.open(n=1)
    ((_, submit),) = stage.told(Submit)
    stage.hear(0, submit.request_id, [5, 6])
    stage.replica(1)
    stage.down("replica-0/executor/0")
    ((place, move),) = stage.told(Move)
    assert (place, move.request_ids, move.epoch) == ("replica-0/", (submit.request_id,), 1)
    stage.hear(0, submit.request_id, [7], 2)
    ended = Finished(reason="abort", cause="moved")
    stage.hear(0, submit.request_id, [], 3, ended, text="half a character")
    assert stage.actor.num_open == 1 and not (sink.ends or sink.text), "its old end is nobody's"
    stage.hear_moved(0, [submit.request_id], deaths=2)
    place, again = stage.told(Submit)[-1]
    assert place == "replica-1/" and again.request_id != submit.request_id
    assert again.resume.token_ids.tolist() == [5, 6, 7]
    assert (again.resume.deaths, again.resume.died_at) == (2, 14)
    stage.hear(0, submit.request_id, [98, 98], 3, Finished(reason="length"))
    stage.hear(1, again.request_id, [8], 3, Finished(reason="length"))
    assert sink.token_ids == [5, 6, 7, 8] and sink.ends == ["length"] and not stage.actor.num_open


async def test_those_of_a_scheduler_that_died_go_on_without_its_word(stage):
    stage.replica(0)
    await stage.open()
    await stage.open("other", n=2)
    stage.replica(1)
    before = len(stage.said)
    stage.down("replica-0/scheduler")
    assert [place for place, _ in stage.told(Submit, before)] == ["replica-1/"] * 3
    assert not stage.told(Move, before) and not stage.told(Abort, before)


async def test_a_scheduler_that_dies_with_its_word_unsaid_is_not_waited_for(stage):
    stage.replica(0)
    await stage.open()
    stage.replica(1)
    stage.down("replica-0/blocks")
    assert [move.epoch for _, move in stage.told(Move)] == [0] and len(stage.told(Submit)) == 1
    stage.down("replica-0/scheduler")
    assert [place for place, _ in stage.told(Submit)] == ["replica-0/", "replica-1/"]
    stage.replica(0, incarnation=2)
    assert len(stage.told(Submit)) == 2, "nothing of it is there any more"


async def test_an_executor_that_was_swapped_is_nobodys_fault(stage):
    stage.replica(0)
    await stage.open()
    stage.replica(1)
    stage.down("replica-0/executor/0", SWAPPED)
    assert [move.epoch for _, move in stage.told(Move)] == [0]


async def test_a_request_that_has_ended_there_waits_for_its_end(stage):
    stage.replica(0)
    sink = await stage.open()
    stage.replica(1)
    ((_, submit),) = stage.told(Submit)
    stage.down("replica-0/executor/0")
    stage.hear_moved(0, [], unknown=[submit.request_id])
    assert len(stage.told(Submit)) == 1
    stage.hear(0, submit.request_id, [5], 0, Finished(reason="stop"))
    assert sink.ends == ["stop"]


async def test_without_another_replica_they_wait_for_their_own(stage):
    stage.replica(0)
    await stage.open()
    stage.down("replica-0/scheduler")
    assert len(stage.told(Submit)) == 1
    stage.up("replica-0/scheduler", incarnation=2)
    assert [place for place, _ in stage.told(Submit)] == ["replica-0/"] * 2


async def test_another_replica_that_comes_first_takes_them(stage):
    stage.replica(0)
    await stage.open()
    stage.down("replica-0/scheduler")
    stage.replica(1)
    assert [place for place, _ in stage.told(Submit)] == ["replica-0/", "replica-1/"]
    stage.replica(0, incarnation=2)
    assert len(stage.told(Submit)) == 2


async def test_a_schedulers_class_that_knows_no_moves_is_told_to_end_them(stage):
    stage.replica(0, **{MOVES: 0})
    stage.up("replica-0/scheduler", **{MOVES: 0})
    await stage.open()
    stage.replica(1)
    before = len(stage.said)
    stage.down("replica-0/executor/0")
    assert [place for place, _ in stage.told(Abort, before)] == ["replica-0/"]
    assert [place for place, _ in stage.told(Submit, before)] == ["replica-1/"]


async def test_a_replica_that_is_drained_gets_no_new_ones_and_then_loses_its_old_ones(stage):
    stage.replica(0)
    await stage.open("old")
    stage.replica(1)
    changed = ActorChanged(
        address=f"{stage.model}replica-0/scheduler", incarnation=1, facts={MOVES: 1, DRAINING: CLOSED}
    )
    stage.actor.peer_changed(changed)
    for name in "abc":
        await stage.open(name)
    assert [place for place, _ in stage.told(Submit)[1:]] == ["replica-1/"] * 3 and not stage.told(Move)
    changed.facts[DRAINING] = MOVING
    stage.actor.peer_changed(changed)
    ((place, move),) = stage.told(Move)
    assert place == "replica-0/" and len(move.request_ids) == 1
    stage.hear_moved(0, move.request_ids)
    assert stage.told(Submit)[-1][0] == "replica-1/"


async def test_many_requests_of_a_drained_replica_move_some_at_a_time(stage):
    """Requests that have ended there meanwhile stop neither the others nor themselves."""
    stage.replica(0)
    for number in range(2 * DRAINED_AT_ONCE + 3):
        await stage.open(f"r{number}")
    names = [one.request_id for _, one in stage.told(Submit)]
    stage.replica(1, **{DRAINING: 0})
    stage.actor.peer_changed(
        ActorChanged(
            address=f"{stage.model}replica-0/scheduler", incarnation=1, facts={MOVES: 1, DRAINING: MOVING}
        )
    )
    ended = names[1]
    for wave in (names[:DRAINED_AT_ONCE], names[DRAINED_AT_ONCE : 2 * DRAINED_AT_ONCE]):
        assert stage.told(Move)[-1][1].request_ids == tuple(wave)
        there = [name for name in wave if name != ended]
        stage.hear_moved(0, there, unknown=[ended] if ended in wave else [])
    last = stage.told(Move)[-1][1].request_ids
    assert {*last} == {ended, *names[2 * DRAINED_AT_ONCE :]}
    stage.hear_moved(0, names[2 * DRAINED_AT_ONCE :], unknown=[ended])
    assert len(stage.told(Move)) == 3, "nothing is left but the one that has ended"
    assert [place for place, _ in stage.told(Submit)[len(names) :]] == ["replica-1/"] * (len(names) - 1)
    stage.hear(0, ended, [5], 0, Finished(reason="length"))
    assert stage.actor.num_open == len(names) - 1


async def test_a_replica_that_was_removed_leaves_nothing(stage):
    stage.replica(0)
    await stage.open()
    stage.replica(1)
    for role in CAST:
        stage.down(f"replica-0/{role}", REMOVED, final=True)
    assert stage.actor.places(stage.model) == [f"{stage.model}replica-1/"]
    assert stage.told(Submit)[-1][0] == "replica-1/"
    stage.hear(0, "1.1", [5], 0, Finished(reason="length"))
    assert stage.actor.num_open == 1


async def test_only_when_all_are_lost_for_good_do_requests_end(stage):
    stage.replica(0)
    stage.replica(1)
    sink = await stage.open()
    ((place, _),) = stage.told(Submit)
    mine, other = (0, 1) if place == "replica-0/" else (1, 0)
    stage.down(f"replica-{other}/executor/0", final=True)
    stage.down(f"replica-{mine}/blocks")
    assert sink.error is None and stage.actor.lost(stage.model) is None
    stage.down(f"replica-{mine}/scheduler", final=True)
    assert isinstance(sink.error, GivenUp) and "will not be restarted" in str(sink.error)


async def test_what_a_user_leaves_is_ended_where_it_is(stage):
    stage.replica(0)
    await stage.open()
    stage.replica(1)
    stage.down("replica-0/scheduler")
    before = len(stage.said)
    stage.actor.abort_all(["r"])
    ((place, abort),) = stage.told(Abort, before)
    assert place == "replica-1/" and len(abort.request_ids) == 1
    assert [one.num_tokens for one in stage.actor._peers[stage.model].places.values()] == [0, 0]


async def test_a_request_that_is_left_while_it_moves_goes_nowhere(stage):
    stage.replica(0)
    await stage.open()
    stage.replica(1)
    stage.down("replica-0/executor/0")
    ((_, move),) = stage.told(Move)
    stage.actor.abort_all(["r"])
    before = len(stage.said)
    stage.hear_moved(0, move.request_ids)
    assert not stage.told(Submit, before) and not stage.actor.num_open
