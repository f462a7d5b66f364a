"""The actors that a frontend needs."""

import pytest

from pageant.actors.frontend.peers import CAST, Peers
from pageant.protocol.fronting import ServedModel
from pageant.protocol.supervision import ActorDown, ActorUp


@pytest.fixture(params=["", "small/"])
def peers(request):
    return Peers(
        ServedModel(
            name="m",
            replica=request.param,
            folder="m",
            vocab_size=8,
            max_model_len=8,
            max_logprobs=0,
            generation_config="none",
        )
    )


def up(name, features=()):
    return ActorUp(address=name, incarnation=1, features=features)


def down(name, *, final=False, reason="it failed twice"):
    return ActorDown(address=name, incarnation=1, reason=reason, final=final)


def test_the_cast_is_complete_when_every_role_has_somebody(peers):
    for role in CAST:
        assert not peers.complete
        peers.came(up(peers.address(role)))
    assert peers.complete
    peers.went(down(peers.address("scheduler")))
    assert not peers.complete and peers.lost is None


def test_a_role_of_several_is_there_while_one_of_them_is(peers):
    peers.came(up(peers.address("tokenizer/0"), ("chat",)))
    peers.came(up(peers.address("tokenizer/1")))
    assert peers.role("tokenizer") == [("chat",), ()]
    peers.went(down(peers.address("tokenizer/0"), final=True))
    assert peers.role("tokenizer") == [()] and peers.lost is None


def test_who_will_not_come_back_is_named_with_the_reason(peers):
    peers.came(up(peers.address("executor/0")))
    peers.went(down(peers.address("executor/0"), final=True))
    name = peers.address("executor/0")
    assert peers.lost == f"{name} is down and will not be restarted: it failed twice"
    peers.came(up(peers.address("executor/0")))
    assert peers.lost is None
