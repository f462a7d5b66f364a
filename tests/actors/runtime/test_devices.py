"""Devices: what a host has, what an actor that asks for one gets, and what is refused before anything starts."""

from __future__ import annotations

import msgspec
import pytest

import pageant
from pageant.actors.runtime.devices import choose, cores_of, is_cpu, local_cores, local_devices
from pageant.actors.runtime.instructions import GiveUp, Start
from pageant.actors.runtime.plans import ActorPlan, NodePlan
from pageant.actors.runtime.resolving import Cast, Resolved, resolve
from pageant.actors.runtime.restarts import Supervision
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import TopologyError

CAST = Cast(
    {"executor": "pageant.actors.executor.actor:Executor"}, groups=frozenset(), root_actors=frozenset()
)
TWO = ("cpu", "cuda:0", "cuda:1")


def resolved(topology: dict, devices: tuple[str, ...] = TWO) -> Resolved:
    return resolve(parse({"model": "x", **topology}), CAST, {"model": "x"}, devices=devices)


def executor(topology: Resolved) -> tuple[str, str]:
    (plan,) = topology.actors
    return plan.node, msgspec.json.decode(plan.options)["device"]


@pytest.mark.parametrize(
    ("wanted", "there", "taken", "found"),
    [
        ("cpu", (), (), "cpu"),
        ("cuda", TWO, (), "cuda:0"),
        ("cuda", TWO, ("cuda:0",), "cuda:1"),
        ("cuda", TWO, ("cuda:0", "cuda:1"), None),
        ("cuda:1", TWO, (), "cuda:1"),
        ("cuda:2", TWO, (), None),
        ("free", TWO, ("cuda:0",), "cuda:1"),
        ("free", ("cpu",), (), "cpu"),
        ("cpu:0-1", TWO, ("cpu:0-1",), "cpu:0-1"),
        ("cuda", ("cpu",), (), None),
    ],
)
def test_who_asks_gets_one_that_is_free(wanted, there, taken, found):
    assert choose(wanted, there, taken) == found


def test_a_host_has_what_its_driver_shows_and_the_environment_leaves(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local_devices(tmp_path) == ("cpu",)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert local_devices(tmp_path) == TWO
    for visible, count in (("1", 1), ("", 0), ("-1", 0), ("0,-1,1", 1), ("GPU-ab12,GPU-cd34", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert len(local_devices(tmp_path)) == 1 + count, visible


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (("dxg",), 1),
        (("nvhost-gpu",), 1),
        (("kfd", "dri/renderD128", "dri/renderD129"), 2),
        (("dri/renderD128",), 0),
    ],
)
def test_other_drivers_are_known_too(tmp_path, monkeypatch, files, count):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dri").mkdir()
    for name in files:
        (tmp_path / name).touch()
    assert len(local_devices(tmp_path)) == 1 + count


def test_an_actor_that_asks_for_a_device_gets_a_process_on_one_that_nobody_has():
    topology = resolved({"nodes": {"other": {"process": True, "device": "cuda:0"}}, "placement": "one",
                         "actors": {"executor": {"device": "cuda:1"}}})  # fmt: skip
    assert executor(topology) == ("executor", "cuda:1")
    assert [(node.name, node.device) for node in topology.nodes if node.process] == [
        ("other", "cuda:0"),
        ("executor", "cuda:1"),
    ]
    assert executor(resolved({"actors": {"executor": {"device": "free"}}})) == ("executor", "cuda:0")
    assert executor(resolved({"actors": {"executor": {"device": "free"}}}, ("cpu",))) == ("executor", "cpu")


def test_a_node_that_has_the_device_is_taken_first_and_its_actors_compute_there():
    nodes = {"a": {"process": True}, "b": {"process": True, "device": "cuda"}}
    assert executor(resolved({"nodes": nodes, "actors": {"executor": {"device": "cuda"}}})) == ("b", "cuda:0")
    assert executor(resolved({"nodes": nodes, "actors": {"executor": {"node": "b"}}})) == ("b", "cuda:0")


def test_an_actor_lives_on_the_node_of_a_host():
    nodes = {"front": {}, "b": {"host": "127.0.0.1"}}
    plain = {"options": {"device": "cpu"}}
    assert (
        executor(resolved({"nodes": nodes, "actors": {"executor": {"host": "127.0.0.1", **plain}}}))[0] == "b"
    )
    assert executor(resolved({"actors": {"executor": {"host": "localhost", **plain}}}))[0] == "front"


@pytest.mark.parametrize(
    ("topology", "place", "text"),
    [
        ({"actors": {"executor": {"device": "cuda"}}}, "actors.executor.device", "found 'cuda'; this host has cpu"),
        ({"actors": {"executor": {"device": "gpu"}}}, "actors.executor.device", "expected cpu, cpu:0-3, cuda"),
        ({"actors": {"executor": {"host": "10.0.0.9"}}}, "actors.executor.host", "no node is on host '10.0.0.9'"),
        ({"actors": {"executor": {"host": "x", "node": "y"}}}, "actors.executor", "both node and host are given"),
        ({"nodes": {"b": {"process": True, "device": "cuda:3"}}}, "nodes.b.device", "found 'cuda:3'; this"),
        ({"device": "cuda:0"}, "actors.executor.options.device", "found 'cuda:0'; this host has cpu"),
        ({"nodes": {"b": {"process": True, "device": "cpu:4000"}}}, "nodes.b.device", "names core 4000; this process"),
        ({"nodes": {"b": {"process": True, "device": "cpu:1-0"}}}, "nodes.b.device", "has the range 1-0; expected 0-1"),
        ({"nodes": {"b": {"process": True, "device": "cpu:0,0"}}}, "nodes.b.device", "names core 0 twice"),
        ({"actors": {"executor": {"device": "cpu:"}}}, "actors.executor.device", "expected cpu, cpu:0-3"),
        ({"actors": {"executor": {"device": "cpu:4000"}}}, "actors.executor.device", "names core 4000"),
        (
            {"nodes": {"b": {"process": True, "device": "cpu"}},
             "actors": {"executor": {"node": "b", "options": {"device": "cuda:0"}}}},
            "actors.executor.options.device", "its node has 'cpu'",
        ),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_its_place_before_anything_starts(topology, place, text):
    with pytest.raises(TopologyError) as error:
        resolved(topology, ("cpu",))
    assert error.value.place == place and text in error.value.message


def test_two_nodes_do_not_share_a_device_that_was_chosen_for_them():
    node = {"process": True, "device": "cuda"}
    topology = resolved({"nodes": {"a": node, "b": node}})
    assert [each.device for each in topology.nodes if each.process and each.device] == ["cuda:0", "cuda:1"]
    with pytest.raises(TopologyError, match=r"nodes.c.device: found 'cuda'; .* cuda:0, cuda:1 is taken"):
        resolved({"nodes": {"a": node, "b": node, "c": node}})


# Nodes that join by themselves say what they have.

JOIN = {
    "nodes": {"a": {"host": "127.0.0.1"}, "b": {"host": "127.0.0.1"}},
    "actors": {"executor": {"device": "cuda"}},
}


def supervision() -> Supervision:
    topology = resolved(JOIN, ("cpu",))
    (plan,) = topology.actors
    assert (plan.node, plan.device) == ("", "cuda")
    core = Supervision(topology.root, "ipc://root", topology.nodes, topology.actors)
    assert not [one for one in core.begin(0.0) if isinstance(one, Start)]
    return core


def join(core: Supervision, node: str, devices: tuple[str, ...], now: float = 1.0) -> list:
    return core.node_joined(node, core.issue(node, now, gone=False), f"ipc://{node}", now, 1, devices)


def test_an_actor_goes_to_the_node_that_reports_such_a_device_and_moves_when_that_is_gone():
    core = supervision()
    assert not [one for one in join(core, "a", ("cpu",)) if isinstance(one, Start)]
    (start,) = [one for one in join(core, "b", TWO) if isinstance(one, Start)]
    assert start.node == "b" and msgspec.json.decode(start.order.options)["device"] == "cuda:0"
    core.actor_started("executor", 1, (), 2.0)
    assert core.all_up() and core.directory().actors[0].node == "b"
    later = 90.0
    for second in range(3, int(later)):
        core.renewed("a", 1, second)
        assert not [one for one in core.tick(second) if isinstance(one, Start)]  # a has none
    assert not core.directory().actors[0].up
    (again,) = [one for one in join(core, "b", ("cpu", "cuda:0"), later + 3) if isinstance(one, Start)]
    assert again.node == "b" and again.order.incarnation == 2


def test_if_nobody_who_joins_has_one_that_is_told_and_nothing_loads():
    core = supervision()
    assert not [one for one in join(core, "a", ("cpu",)) if isinstance(one, GiveUp)]
    (end,) = [one for one in join(core, "b", ("cpu",)) if isinstance(one, GiveUp)]
    assert (end.who, end.error) == ("executor", "no node has cuda free for it: a has cpu; b has cpu")


def test_a_node_that_joins_without_the_device_that_it_is_there_for_gets_no_actors():
    nodes = (NodePlan("root"), NodePlan("far", joins=True, device="cuda:1"))
    core = Supervision("root", "", nodes, (ActorPlan("executor", "far", "m:C", b"{}"),))
    core.begin(0.0)
    found = join(core, "far", ("cpu", "cuda:0"))
    assert not [one for one in found if isinstance(one, Start)]
    (end,) = [one for one in found if isinstance(one, GiveUp)]
    assert end.error == "node far is to have cuda:1; it has cpu, cuda:0"


# Cores of a CPU.


@pytest.mark.parametrize(
    ("device", "cores"),
    [
        ("cpu", None),
        ("cuda:0", None),
        ("cpu:0", (0,)),
        ("cpu:0-3", (0, 1, 2, 3)),
        ("cpu:8,0-1", (0, 1, 8)),
        ("cpu:5-5", (5,)),
    ],
)
def test_a_device_may_name_cores(device, cores):
    assert cores_of(device) == cores
    assert is_cpu(device) == device.startswith("cpu")


def test_this_process_has_cores():
    assert local_cores()


def two_ranks(first: str, second: str, **node: object) -> Resolved:
    nodes = {
        "a": {"process": True, "device": first, **node},
        "b": {"process": True, "device": second, **node},
    }
    cast = Cast(CAST.classes, groups=frozenset({"executor"}), root_actors=frozenset())
    topology = parse({"model": "x", "nodes": nodes, "actors": {"executor": {"nodes": ["a", "b"]}}})
    return resolve(topology, cast, {"model": "x"}, devices=("cpu",))


@pytest.mark.parametrize(("first", "second"), [("cpu:0", "cpu:1"), ("cpu:0", "cpu"), ("cpu", "cpu")])
def test_executors_compute_on_the_cores_of_their_nodes(monkeypatch, first, second):
    monkeypatch.setattr("pageant.actors.runtime.devices.local_cores", lambda: (0, 1))
    found = [msgspec.json.decode(plan.options)["device"] for plan in two_ranks(first, second).actors]
    assert found == [first, second]


def test_two_executors_of_a_host_do_not_share_a_core(monkeypatch):
    monkeypatch.setattr("pageant.actors.runtime.devices.local_cores", lambda: (0, 1, 2, 3))
    with pytest.raises(
        TopologyError, match=r"executor/1 .* cpu:2-3 .* executor/0 .* cpu:0-2.* core 2; expected"
    ):
        two_ranks("cpu:0-2", "cpu:2-3")


def test_executors_with_cores_of_their_own_do_not_share_a_process(monkeypatch):
    monkeypatch.setattr("pageant.actors.runtime.devices.local_cores", lambda: (0, 1))
    cast = Cast(
        {"executor": CAST.classes["executor"], "other": CAST.classes["executor"]}, frozenset(), frozenset()
    )
    actors = {
        name: {"node": "front", "options": {"device": device}}
        for name, device in (("executor", "cpu:0"), ("other", "cpu:1"))
    }
    with pytest.raises(TopologyError, match="both on node front; expected a process for each"):
        resolve(parse({"model": "x", "actors": actors}), cast, {"model": "x"}, devices=("cpu",))


def test_nodes_of_a_launcher_may_have_the_same_cores_elsewhere(monkeypatch):
    monkeypatch.setattr("pageant.actors.runtime.devices.local_cores", lambda: (0, 1))
    monkeypatch.syspath_prepend(f"{pageant.__path__[0]}/docs/examples")
    launcher = {"class": "by_command:ByCommand", "options": {"command": ["ssh", "10.0.0.7"]}}
    found = two_ranks("cpu:0", "cpu:0", launcher=launcher)
    assert len(found.actors) == 2
