"""Replicas in a topology: who is there once for each, where they live, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from pageant.actors.client.cast import DEFAULT_CAST
from pageant.actors.runtime.resolving import Resolved, resolve
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import TopologyError
from pageant.protocol.roles import OWNED_ROLES

FOUND = {"model": "m", "served": (), "vocab_size": 8, "max_model_len": 8, "tokenizer": "m"}
GPUS = ("cpu", "cuda:0", "cuda:1")


def resolved(topology, devices=("cpu",), **keywords) -> Resolved:
    topology = {"model": "m", **topology} if "models" not in topology else topology
    of_models = dict.fromkeys(topology.get("models", ()), FOUND)
    return resolve(parse(topology), DEFAULT_CAST, FOUND, of_models, devices, **keywords)


def homes(topology: Resolved) -> dict[str, str]:
    return {actor.name: actor.node for actor in topology.actors}


def options_of(topology: Resolved, name: str) -> dict:
    return next(msgspec.json.decode(actor.options) for actor in topology.actors if actor.name == name)


def roles(topology: Resolved, prefix: str) -> set[str]:
    own = [name.removeprefix(prefix) for name in homes(topology) if name.startswith(prefix)]
    return {name.partition("/")[0] for name in own if name.partition("/")[0] in OWNED_ROLES}


def test_one_replica_has_the_names_of_a_topology_without():
    assert homes(resolved({"replicas": 1})) == homes(resolved({}))


def test_each_replica_has_its_own_and_shares_the_rest():
    drafts = {"method": "ngram"}
    found = resolved({"replicas": 2, "placement": "one", "speculation": drafts})
    assert roles(found, "replica-0/") == roles(found, "replica-1/") == OWNED_ROLES
    others = [name for name in homes(found) if not name.startswith("replica-")]
    assert {"tokenizer", "frontend"} <= {*others} and not OWNED_ROLES & {*others}
    assert options_of(found, "replica-1/scheduler") == options_of(found, "replica-0/scheduler")


def test_models_have_as_many_replicas_as_they_say_or_else_as_the_topology_does():
    models = {
        "small": {"model": "m"},
        "large": {"model": "m", "replicas": 3},
        "one": {"model": "m", "replicas": 1},
    }
    found = {
        name for name in homes(resolved({"replicas": 2, "models": models})) if name.endswith("scheduler")
    }
    assert found == {
        *(f"small/replica-{number}/scheduler" for number in range(2)),
        *(f"large/replica-{number}/scheduler" for number in range(3)),
        "one/scheduler",
    }


def test_the_mark_stands_for_the_number_in_nodes_and_entries():
    found = resolved(
        {
            "replicas": 2,
            "nodes": {"front": {}, "gpu-{replica}": {"process": True, "device": "cuda:{replica}"}},
            "actors": {
                "executor": {"node": "gpu-{replica}", "options": {"disk_path": "/kv/{replica}"}},
                "scheduler": {"node": "gpu-{replica}"},
            },
        },
        GPUS,
    )
    assert [(node.name, node.device) for node in found.nodes[1:]] == [
        ("gpu-0", "cuda:0"),
        ("gpu-1", "cuda:1"),
    ]
    for number in range(2):
        executor = options_of(found, f"replica-{number}/executor/0")
        assert (executor["device"], executor["disk_path"]) == (f"cuda:{number}", f"/kv/{number}")
        assert homes(found)[f"replica-{number}/scheduler"] == f"gpu-{number}"


def test_replicas_on_gpus_that_are_not_named_get_one_each():
    found = resolved({"replicas": 2, "device": "cuda"}, GPUS)
    devices = [options_of(found, f"replica-{number}/executor/0")["device"] for number in range(2)]
    assert sorted(devices) == ["cuda:0", "cuda:1"]


def test_replicas_of_one_host_share_its_cores_and_memory():
    found = resolved({"replicas": 3, "placement": "auto"})
    near = [options_of(found, f"replica-{number}/executor/0")["replicas_near"] for number in range(3)]
    assert near == [3, 3, 3]
    assert options_of(resolved({}), "executor/0")["replicas_near"] == 1


def test_a_groups_replicas_are_bound_one_by_one():
    found = resolved({"replicas": 2, "tensor_parallel": 2})
    bound = {actor.name: actor.bound for actor in found.actors if actor.bound}
    assert bound == {
        f"replica-{number}/executor/{rank}": f"replica-{number}/executor"
        for number in range(2)
        for rank in range(2)
    }


def test_one_more_replica_changes_nothing_of_those_that_are_there():
    two, three = resolved({"replicas": 2}), resolved({"replicas": 2}, present={"": (0, 1, 2)})
    others = [actor for actor in three.actors if not actor.name.startswith("replica-2/")]
    assert {actor.name: actor.node for actor in others} == homes(two)
    assert roles(three, "replica-2/") == roles(two, "replica-1/")


@pytest.mark.parametrize(
    ("topology", "place", "text"),
    [
        ({"replicas": 0}, "replicas", "found 0; expected 1 to 64"),
        ({"replicas": -1}, "replicas", "found -1; expected 1 to 64"),
        ({"replicas": 65}, "replicas", "found 65; expected 1 to 64"),
        ({"replicas": "two"}, "replicas", "Expected `int`, got `str`"),
        ({"replicas": 2.5}, "replicas", "Expected `int`, got `float`"),
        ({"replicas": {"prefill": {"count": 1}}}, "replicas", "found only kinds of role prefill"),
        ({"models": {"replica-0": {"model": "m"}}}, "models.replica-0", "replicas are called so"),
        ({"models": {"a": {"model": "m", "replicas": 0}}}, "models.a.replicas", "found 0"),
        (
            {"replicas": 2, "device": "cuda:0"},
            "replicas",
            "would both compute on cuda:0; expected a device for each",
        ),
        (
            {
                "replicas": 2,
                "nodes": {"front": {}, "gpu": {"process": True, "device": "cuda:1"}},
                "actors": {"executor": {"node": "gpu"}},
            },
            "replicas",
            "would both compute on cuda:1",
        ),
        (
            {"replicas": 2, "device": "cpu:0"},
            "actors.executor",
            "expected sets of cores that have none in common",
        ),
        ({"replicas": 3, "device": "cuda"}, "actors.executor.device", "cuda:0, cuda:1 is taken"),
        (
            {"replicas": 2, "actors": {"scheduler": {"options": {"polcy": "fcfs"}}}},
            "actors.scheduler.options.polcy",
            "did you mean 'policy'?",
        ),
        ({"replicas": 2, "policy": "fcsf"}, "actors.scheduler.options.policy", "no policy 'fcsf'"),
        ({"replicas": 2, "actors": {"blocks": {"count": 2}}}, "actors.blocks", "expected exactly one"),
        (
            {"replicas": 2, "actors": {"executor": {"node": "gpu-{replica}"}}},
            "actors.executor.node",
            "no node 'gpu-0'",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(topology, place, text):
    with pytest.raises(TopologyError) as caught:
        resolved(topology, GPUS)
    assert caught.value.place == place and text in str(caught.value)
