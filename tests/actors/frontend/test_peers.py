"""The actors that a frontend needs."""

from pageant.actors.frontend.peers import CAST, Peers
from pageant.protocol.supervision import ActorDown, ActorUp


def up(name, features=()):
    return ActorUp(address=name, incarnation=1, features=features)


def down(name, *, final=False, reason="it failed twice"):
    return ActorDown(address=name, incarnation=1, reason=reason, final=final)


def test_the_cast_is_complete_when_every_role_has_somebody():
    peers = Peers()
    for role in CAST:
        assert not peers.complete
        peers.came(up(role))
    assert peers.complete
    peers.went(down("scheduler"))
    assert not peers.complete and peers.lost is None


def test_a_role_of_several_is_there_while_one_of_them_is():
    peers = Peers()
    peers.came(up("tokenizer/0", ("chat",)))
    peers.came(up("tokenizer/1"))
    assert peers.role("tokenizer") == [("chat",), ()]
    peers.went(down("tokenizer/0", final=True))
    assert peers.role("tokenizer") == [()] and peers.lost is None


def test_who_will_not_come_back_is_named_with_the_reason():
    peers = Peers()
    peers.came(up("executor/0"))
    peers.went(down("executor/0", final=True))
    assert peers.lost == "executor/0 is down and will not be restarted: it failed twice"
    peers.came(up("executor/0"))
    assert peers.lost is None
