"""The shell: who is who, and which life of whom a message is from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.scheduler.actor import Scheduler
from pageant.protocol.allocation import Assign, PoolReady
from pageant.protocol.arrays import int32, int64
from pageant.protocol.outputs import Stopped, TokenBatch
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.scheduling import GetSchedulerStatistics
from pageant.protocol.serving import Submit
from pageant.protocol.stepping import ExecutorReady
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import ActorDown, ActorUp

READY = ExecutorReady(
    epoch=1, num_blocks=8, block_size=4, max_num_seqs=4, max_model_len=16, device="", dtype=""
)


class Told:
    """A scheduler that is told things, and what it says."""

    def __init__(self, **options):
        self.said = []
        self.watched = []
        self.actor = Scheduler(Scheduler.Options(max_model_len=16, **options))
        self.cell = SimpleNamespace(
            name="scheduler",
            incarnation=1,
            node=SimpleNamespace(
                tell=lambda address, message, cell: self.said.append((address, message)),
                watch=lambda address, cell: self.watched.append(address),
                clock=SimpleNamespace(now=lambda: 0.0),
            ),
        )
        self.actor._cell = self.cell

    def tell(self, message, sender="supervisor", incarnation=0):
        self.cell.sender, self.cell.sender_incarnation = sender, incarnation
        self.said.clear()
        getattr(self.actor, self.actor.handlers[type(message)].name)(message)
        return [message for _, message in self.said]

    def up(self, address, incarnation=1):
        return self.tell(ActorUp(address=address, incarnation=incarnation))

    def down(self, address, incarnation=1):
        return self.tell(ActorDown(address=address, incarnation=incarnation, reason="killed"))

    def submit(self, name, incarnation=1, prompt=(1, 2)):
        params = SamplingParams(temperature=0.0, max_tokens=2)
        submit = Submit(request_id=name, frontend="f", prompt_token_ids=int32(prompt), params=params)
        return self.tell(submit, "f", incarnation)

    def ready(self):
        for address in ("executor/0", "blocks", "detokenizer"):
            self.up(address)
        self.tell(READY, "executor/0", 1)
        self.tell(PoolReady(epoch=1), "blocks", 1)
        return self

    @property
    def open(self):
        return [request.request_id for request in self.actor.core.requests]


@pytest.fixture
def told():
    return Told()


def kinds(messages):
    return [type(message) for message in messages]


def test_it_begins_when_executor_and_pool_are_there(told):
    told.ready()
    assert kinds(told.submit("a")) == [Assign]


def test_news_of_a_former_life_does_not_use_up_the_introduction_of_the_next(told):
    told.ready()
    told.submit("a")
    told.tell(
        ExecutorReady(
            epoch=2, num_blocks=8, block_size=4, max_num_seqs=4, max_model_len=16, device="", dtype=""
        ),
        "executor/0",
        2,
    )
    told.down("executor/0", 1)
    told.up("executor/0", 2)
    assert told.actor.core._epoch == 2


def test_a_pool_of_a_dead_block_manager_is_passed_over(told):
    told.ready()
    told.down("blocks", 1)
    told.up("blocks", 2)
    told.tell(PoolReady(epoch=1), "blocks", 2)
    told.submit("a")
    told.tell(PoolReady(epoch=7), "blocks", 1)
    assert told.actor.core._pool_epoch == 1


def test_late_news_of_a_block_managers_death_does_not_harm_its_successor(told):
    told.ready()
    told.up("blocks", 2)
    told.tell(PoolReady(epoch=1), "blocks", 2)
    told.down("blocks", 1)
    assert told.actor.core._pool_epoch == 1


def test_acknowledgements_of_a_dead_detokenizer_are_passed_over(told):
    told.ready()
    told.down("detokenizer", 1)
    assert kinds(told.submit("none", prompt=())) == [TokenBatch], "its end"
    told.tell(Acknowledge(stream="tokens", up_to=5), "detokenizer", 1)
    assert told.tell(Resume(stream="tokens", after=0), "detokenizer", 1) == []
    assert kinds(told.up("detokenizer", 2)) == [TokenBatch]
    told.tell(Acknowledge(stream="tokens", up_to=1), "detokenizer", 2)
    assert told.actor.core.outputs.stream.unacknowledged == 0


@pytest.mark.parametrize(("meant_for", "counts"), [(0, True), (1, True), (7, False)])
def test_what_was_meant_for_another_scheduler_is_passed_over(told, meant_for, counts):
    told.ready()
    told.submit("none", prompt=())
    again = told.tell(Resume(stream="tokens", after=0, incarnation=meant_for), "detokenizer", 1)
    assert bool(again) == counts
    told.tell(Acknowledge(stream="tokens", up_to=1, incarnation=meant_for), "detokenizer", 1)
    assert told.actor.core.outputs.stream.unacknowledged == (not counts)
    told.submit("a")
    serial = max(request.serial for request in told.actor.core.requests)
    stopped = Stopped(serials=int64([serial]), num_output_tokens=int32([0]), incarnation=meant_for)
    told.tell(stopped, "detokenizer", 1)
    assert len(told.actor.core.requests) == (not counts)


def test_a_gap_is_mended(told):
    told.ready()
    told.submit("none", prompt=())
    assert kinds(told.tell(Resume(stream="tokens", after=0), "detokenizer", 1)) == [TokenBatch]


def test_a_frontends_death_aborts_what_it_had(told):
    told.ready()
    told.submit("a")
    assert told.watched[-1] == "f"
    told.down("f", 1)
    assert told.open == []


def test_a_new_life_of_a_frontend_keeps_its_requests_though_the_news_of_the_death_comes_late(told):
    told.ready()
    told.submit("a", incarnation=1)
    told.submit("a", incarnation=2)
    assert told.open == ["a"]
    told.down("f", 1)
    assert told.open == ["a"]
    told.down("f", 2)
    assert told.open == []


def test_statistics_say_what_there_is(told):
    told.ready()
    told.submit("a")
    statistics = told.actor.statistics(GetSchedulerStatistics())
    assert (statistics.num_waiting, statistics.num_running) == (1, 0)
    assert statistics.counters["submitted"] == 1


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
def test_an_option_out_of_range_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected at least 1"):
        Scheduler.Options(**{name: 0})
