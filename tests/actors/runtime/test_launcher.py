"""Processes on this host, and the standby among them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from runtime_players import GetLog, Until, pid_of

import pageant
from pageant.actors.runtime import launcher as launcher_module
from pageant.actors.runtime import supervisor
from pageant.actors.runtime.launcher import STANDBYS_MAX, Joining, LocalProcesses
from pageant.actors.runtime.loop_thread import LoopThread
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import TopologyError

# The life of a process is what is tested.
pytestmark = pytest.mark.usefixtures("real_processes")

SECONDS = 20.0
Children = Callable[[], list[psutil.Process]]
WATCHED = {"placement": "each", "actors": {"watcher": {"class": "runtime_players:Watcher"}}}


@pytest.fixture
async def launcher(children):
    launcher = LocalProcesses(
        Joining("ipc://nowhere", "ipc:///tmp/{name}-{incarnation}.sock", ("--endless",))
    )
    yield launcher
    await launcher.close()
    assert children() == []


def test_children_find_what_is_importable_here_wherever_this_process_goes(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["", "beside", "/elsewhere"])
    found = launcher_module._environment("/began")["PYTHONPATH"].split(os.pathsep)
    assert found == ["/began/", "/began/beside", "/elsewhere"]


async def test_children_start_where_this_process_began(launcher, monkeypatch, tmp_path, children):
    began = os.getcwd()
    monkeypatch.chdir(tmp_path)
    await launcher.prepare(1, [])
    assert [child.cwd() for child in children()] == [began]


async def prepared(launcher: LocalProcesses, children: Children) -> int:
    await launcher.prepare(1, ["pageant.actors.runtime.agent"])
    (standby,) = children()
    return standby.pid


async def test_the_next_life_of_whoever_dies_first_is_the_spare(start, children, monkeypatch):
    monkeypatch.setattr(supervisor, "STANDBY_AFTER_SECONDS", 0.0)
    cluster = await start(WATCHED)
    first = pid_of(cluster, "echo")
    while not (standbys := [one for one in children() if one.pid != first]):
        await cluster.node.ask("watcher", GetLog(), SECONDS)
    psutil.Process(first).kill()
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert pid_of(cluster, "echo") == standbys[0].pid
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).incarnation == 2


async def test_a_spare_reads_its_command_line_when_it_is_needed(launcher, children, capfd):
    standby = await prepared(launcher, children)
    process = await launcher.launch("b", 1)
    assert process.pid == standby
    assert "exit code 2" in await process.wait()
    assert "unrecognized arguments: --endless" in capfd.readouterr().err


async def test_a_few_spares_are_enough_and_they_end_when_nobody_needs_them(launcher, children):
    assert await prepared(launcher, children) == await prepared(launcher, children)
    await launcher.prepare(9, [])
    assert len(children()) == STANDBYS_MAX
    await launcher.close()
    assert children() == []
    await launcher.prepare(1, [])
    assert children() == []


@pytest.mark.parametrize("how", ["killed", "of another environment"])
async def test_a_spare_that_is_of_no_use_is_not_used(launcher, children, how, monkeypatch):
    standby = await prepared(launcher, children)
    if how == "killed":
        psutil.Process(standby).kill()
        await launcher._standbys[0]._process.wait()
    else:
        monkeypatch.setenv("PAGEANT_TEST_OF_SPARES", "1")
    process = await launcher.launch("b", 1)
    assert process.pid != standby
    await process.wait()


# Launchers of a user's own, named in the topology.

EXAMPLES = Path(pageant.__file__).parent / "docs" / "examples"
OWN = {"class": "by_command:ByCommand", "options": {"command": ["env", "LAUNCHED=by-command"]}}


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.mark.parametrize(
    "topology",
    [
        {"placement": "each", "launcher": OWN},
        {"nodes": {"b": {"process": True, "launcher": OWN}}, "actors": {"echo": {"node": "b"}}},
    ],
)
async def test_a_launcher_of_ones_own_starts_a_node_and_starts_it_again(start, examples, topology):
    cluster = await start({**topology, "actors": WATCHED["actors"] | topology.get("actors", {})})
    home = cluster.supervision.directory().actors[0].node
    first = psutil.Process(pid_of(cluster, home))
    assert first.environ()["LAUNCHED"] == "by-command"
    first.kill()
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert psutil.Process(pid_of(cluster, home)).environ()["LAUNCHED"] == "by-command"


async def test_a_node_without_one_is_started_as_ever(start, examples):
    nodes = {"b": {"process": True, "launcher": OWN}, "c": {"process": True}}
    actors = {"echo": {"nodes": ["b", "c"]}}
    cluster = await start({"nodes": nodes, "actors": actors})
    launched = [psutil.Process(pid_of(cluster, name)).environ().get("LAUNCHED") for name in nodes]
    assert launched == ["by-command", None]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ({"launcher": "by_command:Nothing"}, "launcher: 'by_command' has no 'Nothing'"),
        ({"launcher": "by_command:Job"}, "launcher: 'by_command:Job' is not a subclass of .*Launcher"),
        (
            {"launcher": "by_command:ByCommand"},
            "launcher: by_command:ByCommand cannot be made with {}: .*'command'",
        ),
        (
            {"launcher": {"class": "by_command:ByCommand", "options": {"x": 1}}},
            "launcher: .* unexpected .*'x'",
        ),
        ({"launcher": {"options": {}}}, "launcher: .*class"),
        ({"nodes": {"b": {"launcher": OWN}}}, "nodes.b.launcher: found one; expected it with process: true"),
    ],
)
def test_a_launcher_that_cannot_be_is_refused_before_anything_starts(examples, topology, message):
    with pytest.raises(TopologyError, match=message):
        resolve(parse(topology), Cast({}, frozenset(), frozenset()))


async def test_a_process_is_started_when_another_loop_has_started_its_own(monkeypatch):
    """uvloop starts them one at a time, and refuses what another thread's loop asks for meanwhile."""
    asked = []

    async def create(*command, **keywords):
        asked.append(command)
        if len(asked) < 3:
            raise RuntimeError("Racing with another loop to spawn a process.")
        return "process"

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    assert await launcher_module._spawn(["python"], 1, {}, ".") == "process"
    assert asked == [("python",)] * 3


def test_loops_that_start_processes_at_once_can_be_closed():
    threads = [LoopThread(f"pageant-test-{number}") for number in range(3)]

    async def start_some() -> None:
        for _ in range(10):
            process = await launcher_module._spawn(["true"], nothing.fileno(), {}, ".")
            process.stdin.close()
            assert await process.wait() == 0

    with open(os.devnull) as nothing:
        for started in [thread.run(start_some()) for thread in threads]:
            started.result(30)
    for thread in threads:
        thread.stop()
        assert not thread._thread.is_alive()
