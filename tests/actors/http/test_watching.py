from pageant.actors.http.watching import without_reasons
from pageant.protocol.statistics import Observation
from pageant.protocol.supervision import ActorEntry


def test_what_an_actor_died_of_is_not_told_outside():
    dead = ActorEntry(
        name="executor/0", node="n", incarnation=2, up=False, reason="OSError: /secret/path", restarts=3
    )
    seen = Observation(
        models={"": "m"},
        at=1.0,
        actors=(dead,),
        nodes={},
        frontends={},
        schedulers={},
        pools={},
        executors={},
    )
    (entry,) = without_reasons(seen).actors
    assert (entry.name, entry.reason, entry.restarts, entry.up) == ("executor/0", "", 3, False)
