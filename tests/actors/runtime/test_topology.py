"""Topologies: every mistake is named with its place, and settings reach who knows them."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from pageant.actors.runtime.resolving import Cast, Resolved, resolve
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import TopologyError

CAST = Cast(
    classes={"echo": "runtime_players:Echo", "watcher": "runtime_players:Watcher"},
    groups=frozenset({"echo"}),
    root_actors=frozenset({"watcher"}),
    shared=frozenset({"watcher"}),
    extra_settings=frozenset({"served_model_name"}),
)


def resolved(topology, **keywords) -> Resolved:
    return resolve(parse(topology), CAST, **keywords)


def options_of(topology: Resolved, name: str) -> dict:
    (plan,) = [actor for actor in topology.actors if actor.name == name]
    return msgspec.json.decode(plan.options)


def homes(topology: Resolved) -> dict[str, str]:
    return {actor.name: actor.node for actor in topology.actors}


@pytest.mark.parametrize(
    ("topology", "place", "text"),
    [
        ({"actor": {}}, "actor", "no such key; did you mean 'actors'?"),
        ({"widht": 3}, "widht", "did you mean 'width'?"),
        ({"include": "x.yaml"}, "include", "no such key"),
        ({"nodes": {"a": {"proces": True}}}, "nodes.a.proces", "did you mean 'process'?"),
        ({"actors": {"echo": {"clas": "x"}}}, "actors.echo.clas", "did you mean 'class'?"),
        ({"actors": {"echo": {"cls": "x"}}}, "actors.echo.cls", "did you mean 'class'?"),
        (
            {"actors": {"echo": {"options": {"widht": 1}}}},
            "actors.echo.options.widht",
            "did you mean 'width'?",
        ),
        ({"actors": {"echo": {"options": {"width": "x"}}}}, "actors.echo.options.width", "Expected `int`"),
        ({"width": "x"}, "width", "Expected `int`, got `str`"),
        ({"ratio": float("nan")}, "ratio", "Expected `float`, got `null`"),
        ({"ratio": float("inf")}, "ratio", "Expected `float`, got `null`"),
        ({"width": 99}, "width", "Expected `int` <= 64"),
        ({"width": None}, "width", "Expected `int`, got `null`"),
        ({"nodes": {"a": {"process": 1}}}, "nodes.a.process", "Expected `bool`, got `int`"),
        ({"nodes": {"a": 3}}, "nodes.a", "found 3; expected a mapping"),
        ({"nodes": [1]}, "nodes", "found [1]; expected a mapping"),
        ({"nodes": {"x" * 99: {}}}, "nodes." + "x" * 99, "expected up to 64 letters"),
        ({"nodes": {"a/b": {}}}, "nodes.a/b", "expected up to 64 letters"),
        ({"nodes": {3: {}}}, "nodes.3", "expected up to 64 letters"),
        ({"actors": {"supervisor": {}}}, "actors.supervisor", "none of node, supervisor"),
        ({"actors": {"echo/0": {}}}, "actors.echo/0", "expected up to 64 letters"),
        ({"actors": "echo"}, "actors", "found 'echo'; expected a mapping"),
        ({"actors": {"echo": {"node": 3}}}, "actors.echo.node", "Expected `str | null`, got `int`"),
        ({"actors": {"echo": {"options": []}}}, "actors.echo.options", "Expected `object`, got `array`"),
        ({"actors": {"ecko": {}}}, "actors.ecko", "no class is given; did you mean 'echo'?"),
        ({"actors": {"echo": {"class": "nowhere:Echo"}}}, "actors.echo.class", "no module 'nowhere'"),
        ({"actors": {"echo": {"class": "Echo"}}}, "actors.echo.class", "expected module:Class"),
        (
            {"actors": {"echo": {"class": "runtime_players:Ecko"}}},
            "actors.echo.class",
            "did you mean 'Echo'?",
        ),
        ({"actors": {"echo": {"class": "runtime_players:Ping"}}}, "actors.echo.class", "not a subclass"),
        ({"actors": {"echo": {"class": "runtime_players:os"}}}, "actors.echo.class", "not a subclass"),
        ({"actors": {"echo": {"class": "..x:Y"}}}, "actors.echo.class", "importing '..x' failed"),
        (
            {"actors": {"scheduler": {"class": "runtime_players:Echo"}}},
            "actors.scheduler.class",
            "Echo does not take the role of scheduler",
        ),
        ({"actors": {"echo": {"node": "gpu"}}, "nodes": {"gpu-0": {}}}, "actors.echo.node", "mean 'gpu-0'?"),
        ({"actors": {"echo": {"nodes": ["x"]}}}, "actors.echo.nodes", "no node 'x'"),
        ({"actors": {"echo": {"nodes": []}}}, "actors.echo.nodes", "found none"),
        ({"actors": {"echo": {"node": "a", "nodes": ["a"]}}}, "actors.echo", "both node and nodes"),
        (
            {
                "actors": {"echo": {"nodes": ["a", "b"], "count": 3}},
                "nodes": {"a": {}, "b": {"process": True}},
            },
            "actors.echo.count",
            "found 3, but 2 nodes are named",
        ),
        ({"actors": {"echo": {"count": 0}}}, "actors.echo.count", "found 0; expected 1 to 1024"),
        ({"actors": {"echo": {"count": 1025}}}, "actors.echo.count", "expected 1 to 1024"),
        (
            {"actors": {"watcher": {"node": "far"}}, "nodes": {"far": {"process": True}}},
            "actors.watcher.node",
            "found 'far'; expected 'front'",
        ),
        ({"nodes": {"a": {"like": "a"}}}, "nodes.a.like", "a node includes itself: a -> a"),
        ({"nodes": {"a": {"like": "b"}, "b": {"like": "a"}}}, "nodes.a.like", "a -> b -> a"),
        ({"nodes": {"gpu-0": {}, "gpu-1": {"like": "gpu"}}}, "nodes.gpu-1.like", "did you mean 'gpu-"),
        ({"nodes": {"a": {}, "b": {}}}, "nodes", "a, b would all be this process"),
        ({"nodes": {"a": {"host": "example.org"}}}, "nodes.a.host", "pageant keys"),
        ({"listen": "tcp://0.0.0.0:1"}, "listen", "pageant keys"),
        ({"listen": 5}, "listen", "Expected `str | null`"),
        ({"placement": "everywhere"}, "placement", "everywhere"),
        ({"wire": "never"}, "wire", "never"),
        ({"seed": "x"}, "seed", "Expected `int`"),
        ({"models": {}}, "models", "expected a mapping of names"),
        ({"models": {"a b": {}}}, "models.a b", "found the name 'a b'"),
        ({"models": {"node": {}}}, "models.node", "none of node, supervisor"),
        ({"models": {"a": "folder"}}, "models.a", "found 'folder'; expected a mapping"),
        ({"models": {"a": {"nodes": {}}}}, "models.a.nodes", "it stands at the top"),
        ({"models": {"a": {"models": {}}}}, "models.a.models", "it stands at the top"),
        ({"models": {"a": {"model": 5}}}, "models.a.model", "Expected `str | null`"),
        ({"model": "x", "models": {"a": {}}}, "model", "found 'x'; expected none beside models"),
        ({"models": {"a": {"widht": 3}}}, "models.a.widht", "did you mean 'width'?"),
        ({"models": {"a": {"watched": "x"}}}, "models.a.watched", "no such key"),
        ({"models": {"a": {"width": "x"}}}, "models.a.width", "Expected `int`"),
        ({"models": {"a": {"actors": {"ecko": {}}}}}, "models.a.actors.ecko", "did you mean 'echo'?"),
        (
            {"models": {"a": {"actors": {"echo": {"node": "gpu"}}}}},
            "models.a.actors.echo.node",
            "no node 'gpu'",
        ),
        (
            {"models": {"a": {"actors": {"echo": {"options": {"widht": 1}}}}}},
            "models.a.actors.echo.options.widht",
            "did you mean 'width'?",
        ),
        ({"models": {"a": {"actors": {"watcher": {}}}}}, "models.a.actors.watcher", "at actors.watcher"),
        ({"models": {"a": {}}, "actors": {"echo": {}}}, "actors.echo", "at models.NAME.actors.echo"),
        ([], "", "expected a mapping"),
        (None, "", "expected a mapping"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_mistake_is_named_with_its_place_and_a_remedy(topology, place, text):
    with pytest.raises(TopologyError) as caught:
        resolved(topology)
    assert caught.value.place == place
    assert text in str(caught.value)


def test_a_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_lab.py").write_text("import missing_dependency\n")
    (tmp_path / "angry_lab.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TopologyError, match=r"importing 'broken_lab' failed: .*missing_dependency"):
        resolved({"actors": {"echo": {"class": "broken_lab:X"}}})
    with pytest.raises(TopologyError, match=r"importing 'angry_lab' failed: ZeroDivisionError"):
        resolved({"actors": {"echo": {"class": "angry_lab:X"}}})


def test_settings_reach_the_actors_that_know_them_and_their_own_options_win():
    topology = resolved(
        {"width": 4, "watched": "x", "actors": {"watcher": {"options": {"width": 5}}}},
        settings={"width": 1, "ratio": 0.25, "unknown_to_all": 1},
    )
    assert options_of(topology, "echo/0") == {"capacity": 65536, "width": 4, "ratio": 0.25}
    assert options_of(topology, "watcher") == {"capacity": 65536, "width": 5, "ratio": 0.25, "watched": "x"}


def test_a_setting_of_the_front_end_alone_is_taken():
    assert resolved({"served_model_name": "m"}).root == "front"


def test_a_setting_that_is_of_no_use_without_an_actor_that_knows_it_is_refused_with_that_actors_class():
    cast = dataclasses.replace(CAST, needs={"watched": "echo"})
    with pytest.raises(TopologyError) as caught:
        resolve(parse({"watched": "x"}), cast)
    assert caught.value.place == "actors.echo.class" and "Echo has no option 'watched'" in str(caught.value)
    assert resolve(parse({}), cast).root == "front"


def test_one_puts_all_actors_here_and_each_gives_each_a_process():
    one = resolved({"placement": "one", "actors": {"echo": {"count": 2}}})
    assert homes(one) == {"echo/0": "front", "echo/1": "front", "watcher": "front"}
    assert [node.name for node in one.nodes] == ["front"]
    each = resolved({"placement": "each", "actors": {"echo": {"count": 2}}})
    assert homes(each) == {"echo/0": "echo-0", "echo/1": "echo-1", "watcher": "front"}
    assert [(node.name, node.process) for node in each.nodes] == [
        ("front", False),
        ("echo-0", True),
        ("echo-1", True),
    ]


def test_auto_is_a_fixed_rule():
    assert homes(resolved({})) == homes(resolved({"placement": "auto"}))


def test_written_nodes_win_over_the_placement_and_take_over_from_others():
    nodes = {"desk": None, "gpu": {"process": True, "device": "cuda:0"}, "gpu-1": {"like": "gpu"}}
    topology = resolved(
        {"nodes": nodes, "placement": "each", "actors": {"echo": {"nodes": ["gpu", "gpu-1"]}}},
        devices=("cpu", "cuda:0"),
    )
    assert topology.root == "desk"
    assert homes(topology) == {"echo/0": "gpu", "echo/1": "gpu-1", "watcher": "desk"}
    assert all(node.process for node in topology.nodes if node.name != "desk")


def test_a_node_with_a_host_joins_by_itself():
    topology = resolved({"nodes": {"b": {"host": "127.0.0.1"}}, "actors": {"echo": {"node": "b"}}})
    assert [(node.name, node.joins, node.process) for node in topology.nodes] == [
        ("front", False, False),
        ("b", True, False),
    ]


def test_models_have_actors_of_their_own_and_share_the_others():
    topology = resolved(
        {
            "models": {
                "a": {"width": 2},
                "b": {"actors": {"echo": {"node": "gpu", "options": {"width": 3}}}},
            },
            "nodes": {"gpu": {"process": True}},
            "width": 1,
            "placement": "each",
        },
        settings={"watched": "x"},
        of_models={"a": {"ratio": 0.25}, "b": {"ratio": 0.5}},
    )
    assert homes(topology) == {"watcher": "front", "a/echo/0": "a/echo", "b/echo/0": "gpu"}
    assert [(node.name, node.process) for node in topology.nodes] == [
        ("front", False),
        ("gpu", True),
        ("a/echo", True),
    ]
    widths = {name: options_of(topology, name)["width"] for name in homes(topology)}
    assert widths == {"watcher": 1, "a/echo/0": 2, "b/echo/0": 3}
    assert options_of(topology, "a/echo/0")["ratio"] == 0.25
    assert options_of(topology, "b/echo/0")["ratio"] == 0.5


def test_nodes_that_only_this_host_reaches_come_last():
    """Each node links to those before it."""
    nodes = {
        "child": {"process": True},
        "far": {"host": "127.0.0.1"},
        "front": {},
        "other": {"process": True},
    }
    assert [node.name for node in resolved({"nodes": nodes}).nodes] == ["front", "far", "child", "other"]
