"""Actors that a topology adds: those that nobody would talk to are refused with the name that was meant."""

from __future__ import annotations

import pytest

from pageant.actors.client.cast import DEFAULT_CAST
from pageant.actors.detokenizer import Detokenizer
from pageant.actors.runtime import Actor
from pageant.actors.runtime.resolving import resolve
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import TopologyError

SETTINGS = {
    **{"served": (), "model": "checkpoint", "max_model_len": 64, "vocab_size": 96, "eos_token_ids": (2,)},
    "has_chat_template": False,
}


class Plain(Actor):
    """No part of the cast."""


class Shout(Detokenizer):
    """Takes the role of detokenizer."""


def resolved(name, cls):
    actors = {name: {"class": f"{__name__}:{cls.__name__}"}}
    return resolve(parse({"actors": actors}), DEFAULT_CAST, SETTINGS)


@pytest.fixture(autouse=True)
def classes_by_name(monkeypatch):
    from pageant.actors.runtime import entries

    load = entries.load_actor_class
    own = {f"{__name__}:{cls.__name__}": cls for cls in (Plain, Shout)}
    monkeypatch.setattr(
        entries, "load_actor_class", lambda name, place: own[name] if name in own else load(name, place)
    )


@pytest.mark.parametrize(
    ("name", "cls", "meant"),
    [
        ("detokeniser", Shout, "detokenizer"),
        ("shouting", Shout, "detokenizer"),
        ("schedular", Plain, "scheduler"),
    ],
)
def test_an_actor_that_nobody_talks_to_is_refused(name, cls, meant):
    with pytest.raises(TopologyError, match=rf"actors\.{name}.*did you mean '{meant}'"):
        resolved(name, cls)


def test_an_actor_of_the_users_own_may_have_any_other_name():
    assert any(actor.name == "counter" for actor in resolved("counter", Plain).actors)
