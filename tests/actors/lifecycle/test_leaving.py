"""Which replicas may leave: never the last one that takes requests, unless it is forced to."""

from __future__ import annotations

import pytest

from pageant.actors.lifecycle.replicas import ElasticLifecycle
from pageant.protocol.errors import BadRequest
from pageant.protocol.supervision import ActorEntry, Directory

ROLES = ("scheduler", "blocks", "executor/0")


class Leaving(ElasticLifecycle):
    """A lifecycle that sees two replicas, of the second of which one actor is as it is said to be."""

    def __init__(self, other: ActorEntry) -> None:
        names = [f"replica-{number}/{role}" for number in range(2) for role in ROLES]
        entries = {name: ActorEntry(name=name, node="n", incarnation=1, up=True) for name in names}
        self.seen = Directory(version=1, nodes=(), actors=tuple({**entries, other.name: other}.values()))

    async def _directory(self) -> Directory:
        return self.seen


@pytest.mark.parametrize(
    "other",
    [
        ActorEntry(name="replica-1/blocks", node="n", incarnation=1, up=False),
        ActorEntry(name="replica-1/blocks", node="n", incarnation=9, up=False, final=True, reason="it died"),
    ],
    ids=["starting", "given up"],
)
async def test_a_replica_stays_while_the_other_takes_no_requests(other):
    leaving = Leaving(other)
    with pytest.raises(BadRequest, match="replica-0 is the last replica that takes requests"):
        await leaving._leaving("", "replica-0", force=False)
    assert await leaving._leaving("", "replica-0", force=True) == "replica-0/"
    assert await leaving._leaving("", "replica-1", force=False) == "replica-1/", "it is of no use now"
