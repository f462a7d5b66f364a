"""Replicas that come and go: which is next, what it takes, and what supervision keeps of those that went."""

from __future__ import annotations

import pytest

from pageant.actors.runtime.elastic_supervision import ElasticSupervision
from pageant.actors.runtime.growth import Growth
from pageant.actors.runtime.instructions import Dismiss, Launch, Publish, Start, Stop
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.protocol.errors import BadRequest, TopologyError
from pageant.protocol.replicas import DRAINING
from pageant.protocol.supervision import REMOVED
from tests.actors.runtime.test_replicating import GPUS, resolved

NAMES = [f"replica-{number}/{role}" for number in (0, 1) for role in ("scheduler", "executor/0")]


def test_the_next_replica_has_the_lowest_free_number():
    growth = Growth(resolved({"replicas": 2, "placement": "one"}), None)
    prefix, nodes, actors = growth.plan("", [*NAMES, "frontend"])
    assert prefix == "replica-2/" and {actor.name.partition("/")[0] for actor in actors} == {"replica-2"}
    assert [node.name for node in nodes] == ["front"]
    assert growth.plan("", NAMES[2:])[0] == "replica-0/"
    assert growth.plan("", [])[0] == "replica-0/"


def test_a_replica_may_have_a_number_of_its_own():
    growth = Growth(resolved({"replicas": 2, "placement": "one"}), None)
    prefix, _, actors = growth.plan("", NAMES, 5)
    assert prefix == "replica-5/" and actors
    assert growth.plan("", NAMES, 1) == ("replica-1/", [], [])


def test_a_replica_of_one_of_several_models():
    models = {"small": {"model": "m", "replicas": 2}, "large": {"model": "m"}}
    growth = Growth(resolved({"models": models, "placement": "one"}), None)
    assert growth.plan("small/", [f"small/{name}" for name in NAMES])[0] == "small/replica-2/"
    with pytest.raises(BadRequest, match=r"model is 'large'; (did you mean|expected)"):
        growth.plan("large/", [])


def test_without_a_free_device_there_is_no_other():
    growth = Growth(resolved({"replicas": 2, "device": "cuda"}, GPUS), None)
    with pytest.raises(TopologyError, match="cuda:0, cuda:1 is taken"):
        growth.plan("", NAMES)
    nodes = {"front": {}, "gpu-{replica}": {"process": True, "device": "cuda:{replica}"}}
    actors = {"executor": {"node": "gpu-{replica}"}}
    growth = Growth(resolved({"replicas": 2, "nodes": nodes, "actors": actors}, GPUS), None)
    with pytest.raises(TopologyError, match=r"nodes\.gpu-2\.device: found 'cuda:2'; this host has cpu"):
        growth.plan("", NAMES)


def test_there_are_never_more_than_can_be():
    growth = Growth(resolved({"replicas": 2, "placement": "one"}), None)
    with pytest.raises(BadRequest, match="there are 64 replicas"):
        growth.plan("", [f"replica-{number}/scheduler" for number in range(64)])


@pytest.fixture
def core() -> ElasticSupervision:
    """A root with an actor, and a replica with a process of its own."""
    nodes = (NodePlan("front"), NodePlan("p0", process=True))
    actors = (ActorPlan("frontend", "front", "x:X", b"{}"), *plans(0))
    core = ElasticSupervision("front", "", nodes, actors)
    core.begin(0.0)
    core.node_joined("p0", 1, "there", 0.0)
    for name in ("frontend", *(plan.name for plan in plans(0))):
        core.actor_started(name, 1, (), 0.0)
    return core


def plans(number: int) -> tuple[ActorPlan, ...]:
    own = f"replica-{number}/"
    return (
        ActorPlan(f"{own}scheduler", "front", "x:X", b"{}"),
        ActorPlan(f"{own}executor/0", f"p{number}", "x:X", b"{}"),
    )


def entries(core: ElasticSupervision) -> dict[str, int]:
    return {entry.name: entry.incarnation for entry in core.directory().actors}


def test_an_added_replica_begins_with_its_processes(core):
    orders = core.add([NodePlan("p1", process=True)], plans(1), 1.0)
    assert [type(order) for order in orders] == [Launch, Publish, Start]
    assert orders[2].order.name == "replica-1/scheduler"
    begun = core.node_joined("p1", 1, "there", 1.0)
    assert [order.order.name for order in begun if isinstance(order, Start)] == ["replica-1/executor/0"]
    assert core.add([NodePlan("p1", process=True)], plans(1), 2.0) == [Publish()], "it is there already"


def test_a_removed_replica_leaves_with_its_processes_alone(core):
    orders = core.remove("replica-0/")
    assert orders == [Stop("front", "replica-0/scheduler", 1, REMOVED), Dismiss("p0"), Publish()]
    assert entries(core) == {"frontend": 1} and not core.has_node("p0")
    assert core.node_exited("p0", 1, "it was told to", 1.0) == []
    assert core.actor_failed("replica-0/executor/0", 1, "late", "", 1.0) == []
    assert core.renewed("p0", 1, 1.0) is None and core.tick(1e6) == []


def test_a_name_that_comes_again_goes_on_counting(core):
    core.remove("replica-0/")
    orders = core.add([NodePlan("p0", process=True)], plans(0), 2.0)
    assert orders[0] == Launch("p0", 2) and entries(core)["replica-0/scheduler"] == 2
    assert core.node_joined("p0", 1, "there", 2.0) == [], "its former life is late"
    for cycle in range(3, 103):
        core.remove("replica-0/")
        core.add([NodePlan("p0", process=True)], plans(0), float(cycle))
    assert entries(core)["replica-0/scheduler"] == 102
    assert len(core._nodes) == 2 and len(core._actors) == 3
    assert len(core._membership._former_actors) + len(core._membership._former_nodes) == 0


def test_a_drain_is_a_fact_of_all_its_actors(core):
    assert core.drain("replica-0/", 1) == [Publish()]
    facts = {entry.name: entry.facts for entry in core.directory().actors}
    assert facts == {
        "frontend": {},
        "replica-0/scheduler": {DRAINING: 1},
        "replica-0/executor/0": {DRAINING: 1},
    }
    core.actor_changed("replica-0/scheduler", 1, {"paused": 0})
    assert {entry.name: entry.facts for entry in core.directory().actors}["replica-0/scheduler"] == {
        "paused": 0,
        DRAINING: 1,
    }
    assert core.drain("replica-5/", 1) == []
