"""Manifests of topologies: valid by Kubernetes' own schemas, and consistent with each other and with the topology."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

import pageant
from pageant.actors.runtime.topology import parse
from pageant.actors.runtime.transport.keys import make_keys, read_keys, write_keys
from pageant.protocol.errors import ArgumentError, TopologyError
from pageant.scripts.cli import app
from pageant.scripts.kubernetes.manifests import GPU, KEY, Wanted, objects
from pageant.scripts.kubernetes.pods import divide
from tests.actors.runtime.test_replicating import resolved

KEYS = make_keys()
CORES = {
    "model": "/models/demo",
    "replicas": 2,
    "nodes": {"front": {}, "core-{replica}": {"process": True, "device": "cpu:{replica}"}},
    "actors": {"executor": {"node": "core-{replica}"}, "scheduler": {"node": "core-{replica}"}},
}
TOPOLOGIES = {
    "one pod": {"model": "/models/demo"},
    "one pod with a GPU": {"model": "/models/demo", "device": "cuda"},
    "replicas": {"model": "/models/demo", "replicas": 3, "device": "cuda"},
    "replicas of cores": CORES,
    "one that may grow": {"model": "/models/demo", "actors": {"router": {}}},
    "replicas of groups": {"model": "/models/demo", "replicas": 2, "tensor_parallel": 2, "device": "cuda"},
    "a node elsewhere": {
        "model": "/models/demo",
        "listen": "tcp://127.0.0.1:5700",
        "nodes": {
            "front": {},
            "Far_one": {"host": "127.0.0.1", "device": "cuda:3"},
            "beside": {"process": True},
        },
        "actors": {"executor": {"node": "Far_one"}, "tokenizer": {"node": "beside"}},
    },
    "several models": {
        "models": {
            "small": {"model": "/models/small", "replicas": 2},
            "large": {"model": "/models/large", "actors": {"executor": {"node": "big"}}},
        },
        "nodes": {"front": {}, "big": {"process": True, "device": "cuda:0"}},
        "max_num_seqs": 8,
    },
}
EXAMPLES = sorted((Path(pageant.__file__).parent / "docs" / "examples").glob("*.yaml"))


def made(topology, **wanted):
    division = divide(parse(topology), KEY)
    return [*objects(division, Wanted("pageant", "pageant:latest", **wanted), KEYS)]


def of_kind(found, kind):
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def containers(one):
    spec = one["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def check(found):
    for one in found:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len({*names}) == len(names)
    for one in found:
        if one["kind"] not in ("Deployment", "StatefulSet"):
            continue
        template = one["spec"]["template"]
        assert one["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for volume in volumes.values():
            for kind, key in (("ConfigMap", ("configMap", "name")), ("Secret", ("secret", "secretName"))):
                if key[0] in volume:
                    assert (kind, volume[key[0]][key[1]]) in names
        for container in containers(one):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
    services = of_kind(found, "Service")
    for name, stateful in of_kind(found, "StatefulSet").items():
        assert stateful["spec"]["serviceName"] in services, name
        join = containers(stateful)[-1]["command"][3]
        assert join.removeprefix("tcp://").partition(":")[0] in services


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_manifests_are_valid_and_fit_each_other(name):
    check(made(TOPOLOGIES[name], claim="models", memory="16Gi"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_manifests_of_the_examples_are_valid(path):
    check(made({"model": "/models/demo", **yaml.safe_load(path.read_text())}))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_the_root_reads_is_a_topology_with_a_node_for_each_pod(name):
    found = made(TOPOLOGIES[name])
    read = parse(yaml.safe_load(of_kind(found, "ConfigMap")["pageant-topology"]["data"]["topology.yaml"]))
    stateful = of_kind(found, "StatefulSet").values()
    named = [containers(one)[-1]["command"][5].replace("$(POD_INDEX)", "{replica}") for one in stateful]
    assert named == [node for node, spec in read.nodes.items() if spec.host is not None]
    assert read.keys == (KEY if named else None)
    assert ("Secret" in {one["kind"] for one in found}) == bool(named)


def test_each_replica_is_a_pod_where_the_topology_names_no_nodes():
    found = made(TOPOLOGIES["replicas"])
    engine = of_kind(found, "StatefulSet")["pageant-engine"]
    assert engine["spec"]["replicas"] == 3
    (node,) = engine["spec"]["template"]["spec"]["containers"]
    assert node["resources"] == {"limits": {GPU: 1}}
    assert node["command"][:2] == ["pageant", "node"] and "engine-$(POD_INDEX)" in node["command"]
    assert "replicas drain replica-$POD_INDEX" in node["lifecycle"]["preStop"]["exec"]["command"][2]
    assert "replicas add replica-$POD_INDEX" in node["startupProbe"]["exec"]["command"][2]


def test_what_the_root_reads_resolves_to_actors_in_those_pods(tmp_path):
    write_keys(tmp_path / "key", KEYS)
    text = of_kind(made(CORES), "ConfigMap")["pageant-topology"]["data"]["topology.yaml"]
    data = yaml.safe_load(text) | {"listen": "tcp://10.0.0.1:5700", "keys": str(tmp_path / "key")}
    homes = {plan.name: plan.node for plan in resolved(data).actors}
    assert {homes[f"replica-{number}/executor/0"] for number in (0, 1)} == {"core-0", "core-1"}
    assert homes["frontend"] == homes["router"] == "front"


def test_the_members_of_a_group_are_pods_that_come_together():
    found = of_kind(made(TOPOLOGIES["replicas of groups"]), "StatefulSet")
    assert [*found] == ["pageant-engine", "pageant-engine-rank-1"]
    assert {one["spec"]["replicas"] for one in found.values()} == {2}


def test_a_pod_asks_for_the_replicas_of_its_models_alone():
    found = of_kind(made(TOPOLOGIES["several models"]), "StatefulSet")
    drain = containers(found["pageant-engine"])[-1]["lifecycle"]["preStop"]["exec"]["command"][2]
    assert "--model small" in drain and "large" not in drain
    assert "lifecycle" not in containers(found["pageant-big"])[-1]


def test_gpus_of_executors_that_live_with_the_root_are_its_pods():
    def gpus(topology):
        return containers(of_kind(made(topology), "Deployment")["pageant"])[-1]["resources"]

    assert gpus({**TOPOLOGIES["one pod with a GPU"], "tensor_parallel": 2}) == {"limits": {GPU: 2}}
    assert gpus(TOPOLOGIES["one pod with a GPU"]) == {"limits": {GPU: 1}}
    assert gpus(TOPOLOGIES["replicas"]) == {}


def test_only_the_server_is_reached_from_outside():
    found = of_kind(made(CORES), "NetworkPolicy")
    assert [rule["ports"] for rule in found["pageant-http"]["spec"]["ingress"]] == [
        [{"port": "http", "protocol": "TCP"}]
    ]
    (inside,) = found["pageant-own"]["spec"]["ingress"]
    assert inside["from"] == [{"podSelector": found["pageant-own"]["spec"]["podSelector"]}]


def test_the_command_prints_them(tmp_path):
    file, key = tmp_path / "topology.yaml", tmp_path / "pageant.key"
    file.write_text(yaml.safe_dump(CORES))
    write_keys(key, KEYS)
    told = CliRunner().invoke(app, ["kubernetes", str(file), "--name", "here", "--key-file", str(key)])
    assert told.exit_code == 0, told.output
    found = [*yaml.safe_load_all(told.stdout)]
    check(found)
    assert "here-core" in of_kind(found, "StatefulSet")
    assert read_keys(key).secret not in told.stdout, "a Secret is base64"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (["--name", "Page_ant"], ArgumentError, "expected up to 40 of a-z"),
        (["--memory", "much"], ArgumentError, "expected a size, such as 16Gi"),
        (["--claim-path", "models"], ArgumentError, "expected a path from the root on"),
        (["--set", "launcher=by_command:ByCommand"], TopologyError, "Kubernetes starts the nodes"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_by_name(tmp_path, given, error, text):
    file = tmp_path / "topology.yaml"
    file.write_text(yaml.safe_dump(CORES))
    told = CliRunner().invoke(app, ["kubernetes", str(file), *given])
    assert isinstance(told.exception, error) and text in str(told.exception)
