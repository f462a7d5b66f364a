"""Engines with replicas that come and go: the bugs that are put in are caught, and nothing breaks without them."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from pageant.actors.frontend.moving import Moving
from pageant.actors.frontend.peers import Peers
from pageant.actors.router.core import RouterCore
from pageant.actors.router.index import PrefixIndex
from pageant.actors.runtime.instructions import Dismiss
from pageant.actors.runtime.lives import ActorLife
from pageant.actors.runtime.membership import Membership
from pageant.actors.scheduler.actor import Scheduler
from pageant.actors.scheduler.core import SchedulerCore
from pageant.protocol.arrays import int64
from pageant.scripts.simulate.engine import EngineSimulation
from pageant.scripts.simulate.replicas import REPLICAS_MAX, SEEDS_WITH_REPLICAS, draw_count
from pageant.scripts.simulate.runs import run_seed

SEEDS_MAX = 200


def caught_by(first: int = 0) -> str | None:
    """Return the violation of the first seed with one.

    Args:
        first: the seed to begin with. The rest up to `SEEDS_MAX` follow.
    """
    found = (run_seed(seed, replicas=True).violation for seed in range(first, SEEDS_MAX))
    return next((violation for violation in found if violation is not None), None)


def test_some_seeds_have_replicas_and_others_none():
    counts = [draw_count(seed, always=False) for seed in range(300)]
    assert {*counts} == {0, *range(1, REPLICAS_MAX + 1)}
    assert 0.7 / SEEDS_WITH_REPLICAS <= sum(count > 0 for count in counts) / len(counts) <= 0.3
    assert all(draw_count(seed, always=True) for seed in range(300))


def test_the_same_seed_with_replicas_is_the_same_run():
    seed = next(seed for seed in range(100) if len(EngineSimulation(seed, replicas=True).faults) >= 5)
    once, twice = run_seed(seed, replicas=True), run_seed(seed, replicas=True)
    assert once.digest == twice.digest != run_seed(seed).digest
    assert once.violation is None


# Bugs that are put in.


def test_a_router_that_keeps_the_blocks_of_a_replica_that_starts_over(monkeypatch):
    monkeypatch.setattr(PrefixIndex, "reset", lambda self, bit: None)
    assert "only the router knows" in caught_by()


def test_a_ticket_that_is_never_cleared(monkeypatch):
    loaded = RouterCore.loaded

    def unseen(self, name, incarnation, load):
        loaded(self, name, incarnation, msgspec.structs.replace(load, seen=int64()))

    monkeypatch.setattr(RouterCore, "loaded", unseen)
    assert "charges" in caught_by(first=13)


def test_tokens_that_are_taken_from_the_old_place(monkeypatch):
    def kept(self, sequences, peers):
        for name, sequence in sequences.items():  # under the id by which the old place knows it
            self._submit(name, sequence, self._choose(peers))

    monkeypatch.setattr(Moving, "_resubmit", kept)
    assert "has tokens for it" in caught_by()


def test_an_end_that_is_taken_from_the_old_place(monkeypatch):
    move = SchedulerCore.move

    def moved(self, message):
        end = self.requests.end
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.requests, "end", lambda request, reason, **_: end(request, reason))
            return move(self, message)

    monkeypatch.setattr(SchedulerCore, "move", moved)
    assert "ended with ('abort'" in caught_by()


def test_a_place_that_goes_on_with_what_has_moved(monkeypatch):
    """Requests that nobody asks for any more are computed all the same."""
    move = SchedulerCore.move

    def moved(self, message):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.requests, "end", lambda *args, **how: None)
            return move(self, message)

    monkeypatch.setattr(SchedulerCore, "move", moved)
    assert "after their frontends left them" in caught_by(first=10)


def test_a_move_that_loses_the_latest_token(monkeypatch):
    """The new place computes it once more, and so does the user get it."""
    resubmit = Moving._resubmit

    def cut(self, sequences, peers):
        for sequence in sequences.values():
            del sequence.token_ids[-1:]
        resubmit(self, sequences, peers)

    monkeypatch.setattr(Moving, "_resubmit", cut)
    assert "the right ones are" in caught_by()


def waits_for_ever(violation):
    """Tell whether a violation is of a request that waits for ever, as drains of its replica then do."""
    texts = ("never ended", "do not come to rest", "did not answer DrainReplica")
    return any(text in violation for text in texts)


def test_a_request_that_is_lost_while_it_moves(monkeypatch):
    resubmit, calls = Moving._resubmit, itertools.count(1)

    def lossy(self, sequences, peers):
        resubmit(self, {name: one for name, one in sequences.items() if next(calls) % 10}, peers)

    monkeypatch.setattr(Moving, "_resubmit", lossy)
    assert waits_for_ever(caught_by(first=5))


def test_a_scheduler_that_does_not_say_what_it_ended(monkeypatch):
    def silent(self, message):
        self.core.move(message)
        self._flush()

    monkeypatch.setattr(Scheduler, "move", silent)
    assert waits_for_ever(caught_by(first=7))


def test_a_frontend_that_keeps_the_places_of_removed_replicas(monkeypatch):
    went = Peers.went

    def kept(self, event):
        places = dict(self.places)
        went(self, event)
        self.places.update(places)

    monkeypatch.setattr(Peers, "went", kept)
    assert "places of frontends of removed replicas" in caught_by()


def test_processes_of_removed_replicas_that_stay(monkeypatch):
    remove = Membership.remove

    def staying(self, prefix):
        return [one for one in remove(self, prefix) if not isinstance(one, Dismiss)]

    monkeypatch.setattr(Membership, "remove", staying)
    assert caught_by() is not None


def test_an_actor_of_a_replica_that_is_drained_for_good(monkeypatch):
    """The mark of a drain stays with the name that comes again."""
    monkeypatch.setattr(ActorLife, "draining", property(lambda self: 1, lambda self, level: None))
    assert caught_by() is not None
