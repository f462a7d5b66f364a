"""Whole clusters: deaths, restarts, failing starts, and what is left at the end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading

import psutil
import pytest
from runtime_players import Crash, GetLog, HoldBeside, Note, Ping, Slow, Until, pid_of

from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.launcher import LocalProcesses
from pageant.actors.runtime.lives import RestartLimits
from pageant.actors.runtime.loop_thread import LoopThread
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import DeadlineExceeded, GivenUp, PeerGone, StartupError, TopologyError
from pageant.protocol.supervision import SwapActor

# The life of a process is what is tested.
pytestmark = pytest.mark.usefixtures("real_processes")

SECONDS = 20.0
WATCHED = {"watcher": {"class": "runtime_players:Watcher"}}
NO_DELAY = RestartLimits(delay_first=0.0, delay_max=0.0, early_deaths_max=2)


def cast(name: str) -> Cast:
    return Cast({"echo": f"runtime_players:{name}"}, groups=frozenset(), root_actors=frozenset({"watcher"}))


async def watched(cluster: Cluster, event: str):
    return await cluster.node.ask("watcher", Until(event=event), SECONDS)


async def test_a_killed_process_is_started_again_and_serves_again(start):
    cluster = await start({"placement": "each", "actors": WATCHED})
    node = cluster.node
    await watched(cluster, "up echo#1")
    process = psutil.Process(pid_of(cluster, "echo"))
    held = asyncio.create_task(node.ask("echo", HoldBeside(name="x"), SECONDS))
    await node.ask("echo", Until(event="began x"), SECONDS)
    process.kill()
    with pytest.raises(PeerGone):
        await held
    node.tell("echo", Note(text="for nobody"))
    assert node.dead_letters["actor down"] == 1
    assert (await node.ask("echo", GetLog(), SECONDS)).incarnation == 2
    log = await watched(cluster, "up echo#2")
    assert log.events == ("up echo#1", "down echo#1", "up echo#2")
    assert pid_of(cluster, "echo") != process.pid


async def test_an_actor_on_a_node_with_others_falls_and_rises_with_them(start):
    nodes = {"front": {}, "both": {"process": True}}
    actors = {
        "echo": {"node": "both", "count": 2},
        "watcher": {**WATCHED["watcher"], "options": {"watched": "echo/*"}},
    }
    cluster = await start({"nodes": nodes, "actors": actors})
    await watched(cluster, "up echo/1#1")
    cluster.node.tell("echo/0", Crash(how="kill"))
    for index in (0, 1):
        await watched(cluster, f"down echo/{index}#1")
        await watched(cluster, f"up echo/{index}#2")


async def test_what_is_asked_again_is_asked_of_so_many_lives(start):
    cluster = await start({"placement": "one", "actors": WATCHED})
    asked = asyncio.create_task(
        cluster.node.ask("echo", HoldBeside(name="it"), SECONDS, again=True, deaths_max=2)
    )
    for life in (1, 2):
        await watched(cluster, f"up echo#{life}")
        await cluster.node.ask("echo", Until(event="began it"), SECONDS)
        cluster.node.tell("echo", Crash())
    with pytest.raises(PeerGone, match="crashed with ValueError: told to crash"):
        await asked
    await watched(cluster, "up echo#3")
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).events == ()


async def test_an_actor_that_goes_on_crashing_is_given_up_for_good(start, caplog):
    cluster = await start({"placement": "one", "actors": WATCHED}, limits=NO_DELAY)
    await watched(cluster, "up echo#1")
    cluster.node.tell("echo", Crash())
    await watched(cluster, "up echo#2")
    cluster.node.tell("echo", Crash())
    await watched(cluster, "down echo#2 for good")
    with pytest.raises(GivenUp, match="echo is down and will not be restarted: ValueError: told to crash"):
        await cluster.node.ask("echo", Ping(), SECONDS)
    said = [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert re.fullmatch(
        r"echo#1 crashed: ValueError: told to crash \(.*runtime_players\.py:\d+, in \w+\)", said[0]
    )
    crashes = [line for line in said if " crashed: " in line]
    assert len(crashes) == 1, "the same error after a restart is no news"


async def test_a_process_that_goes_on_crashing_is_given_up_with_its_last_traceback(start, caplog):
    cluster = await start({"placement": "each", "actors": WATCHED}, limits=NO_DELAY)
    for life in (1, 2):
        await watched(cluster, f"up echo#{life}")
        cluster.node.tell("echo", Crash(how="fault"))
    await watched(cluster, "down echo#2 for good")
    with pytest.raises(GivenUp, match=r"echo is down and will not.*signal 11.*\(death 2 in a row\)"):
        await cluster.node.ask("echo", Ping(), SECONDS)
    (last,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert "echo is given up after 2 early deaths in a row; the last: its process" in last
    assert "Fatal Python error: Segmentation fault" in last and "in crash" in last


async def test_an_ask_waits_for_its_deadline_at_most_while_an_actor_is_down(start):
    slow = RestartLimits(delay_first=3600.0, delay_max=3600.0)
    cluster = await start({"placement": "one", "actors": WATCHED}, limits=slow)
    cluster.node.tell("echo", Crash())
    await watched(cluster, "down echo#1")
    with pytest.raises(DeadlineExceeded, match="echo was down until the deadline of Ping"):
        await cluster.node.ask("echo", Ping(), 0.02)


@pytest.mark.parametrize("placement", ["one", "each"])
async def test_an_actor_that_fails_to_start_tells_its_own_traceback(start, placement):
    with pytest.raises(StartupError) as caught:
        await start({"placement": placement}, cast=cast("Stillborn"), limits=NO_DELAY)
    text = str(caught.value)
    assert text == "echo failed 2 times while starting: RuntimeError: the sprocket is missing"
    (trace,) = caught.value.__notes__
    assert "_inner_workings" in trace and "runtime_players.py" in trace


async def test_a_process_that_dies_while_starting_is_started_again(start, tmp_path):
    file = tmp_path / "times"
    file.write_text("1")
    topology = {"placement": "each", "actors": {"echo": {"options": {"times_left": str(file)}}}}
    cluster = await start(topology, cast=cast("StillbornProcess"), limits=NO_DELAY)
    assert (await cluster.node.ask("echo", Ping(value=1), SECONDS)).value == 1


async def test_a_process_that_always_dies_while_starting_is_given_up(start, tmp_path):
    file = tmp_path / "times"
    file.write_text("9")
    topology = {"placement": "each", "actors": {"echo": {"options": {"times_left": str(file)}}}}
    with pytest.raises(
        StartupError, match=r"failed 2 times while starting: its process \d+ was ended by signal 9"
    ):
        await start(topology, cast=cast("StillbornProcess"), limits=NO_DELAY)


async def test_a_process_that_cannot_be_spawned_is_a_startup_error(start, monkeypatch):
    async def cannot(*arguments, **keywords):
        raise OSError(11, "no more processes")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", cannot)
    with pytest.raises(StartupError, match=r"could not be started: .*no more processes"):
        await start({"placement": "each"}, limits=NO_DELAY)


async def test_stopping_while_starting_leaves_nothing(start):
    for placement in ("one", "each"):
        await start({"placement": placement}, cast=cast("Slow"), wait=False)
    assert Slow.__name__  # the fixture stops them, and looks


async def test_a_topology_without_actors_is_ready_at_once(start):
    cluster = await start({}, cast=Cast({}, frozenset(), frozenset()))
    assert len(await cluster.statistics()) == 1


async def test_stopping_twice_and_at_once_is_stopping(start):
    cluster = await start({"placement": "each"})
    await asyncio.gather(cluster.stop(), cluster.stop())
    await cluster.stop()
    with pytest.raises(PeerGone):
        await cluster.node.ask("echo", Ping(), SECONDS)


async def test_two_clusters_live_side_by_side(start):
    one = await start({"placement": "each"})
    two = await start({"placement": "each"})
    three = await start({"placement": "one", "wire": "always"})
    for value, cluster in enumerate((one, two, three)):
        assert (await cluster.node.ask("echo", Ping(value=value), SECONDS)).value == value
    await one.stop()
    assert (await two.node.ask("echo", Ping(value=5), SECONDS)).value == 5


async def test_a_topology_in_one_process_listens_where_it_is_told_to(start):
    cluster = await start({"placement": "one", "listen": "tcp://127.0.0.1:*"})
    with socket.create_connection(("127.0.0.1", int((cluster.endpoint or "").rpartition(":")[2]))):
        assert (await start({"placement": "one"})).endpoint is None


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:*", "ipc://{}/root"])
async def test_an_address_that_is_taken_is_a_topology_error(start, tmp_path, listen):
    one = await start({"placement": "each", "listen": listen.format(tmp_path)})
    cluster = Cluster(resolve(parse({"placement": "each", "listen": one.endpoint}), cast("Echo")))
    with pytest.raises(TopologyError, match=r"listen: cannot listen on (tcp|ipc)://.*in use"):
        await cluster.start()
    await cluster.stop()
    os.kill(pid_of(one, "echo"), signal.SIGKILL)  # whose next life finds the first
    assert (await one.node.ask("echo", Ping(value=5), SECONDS, again=True)).value == 5


async def test_an_unexpected_name_for_a_process_is_no_way_out_of_its_folder(start):
    with pytest.raises(TopologyError, match=r"nodes.\.\./evil"):
        parse({"nodes": {"../evil": {"process": True}}})


def test_a_cluster_runs_in_a_thread_of_its_own(children):
    before = set(threading.enumerate())
    thread = LoopThread("pageant-test")

    async def up() -> Cluster:
        cluster = Cluster(resolve(parse({"placement": "each"}), cast("Echo")))
        await cluster.start()
        async for _ in cluster.startup():
            pass
        return cluster

    try:
        cluster = thread.run(up()).result(SECONDS)
        reply = thread.run(cluster.node.ask("echo", Ping(value=4), SECONDS)).result(SECONDS)
        assert reply.value == 4
        thread.run(cluster.stop()).result(SECONDS)
        left = thread.run(asyncio.Event().wait())
    finally:
        thread.stop()
    assert left.cancelled() and not thread._thread.is_alive()
    assert set(threading.enumerate()) == before
    assert children() == []


async def test_a_launcher_that_fails_in_its_own_way_fails_that_launch_alone(start, monkeypatch):
    cluster = await start({"placement": "each", "actors": WATCHED})
    launch, failures = LocalProcesses.launch, [RuntimeError("its cluster is busy")]

    async def launched(self, node, incarnation):
        if failures:
            raise failures.pop()
        return await launch(self, node, incarnation)

    monkeypatch.setattr(LocalProcesses, "launch", launched)
    psutil.Process(pid_of(cluster, "echo")).kill()
    await watched(cluster, "up echo#2")
    assert not failures


async def test_without_its_supervisor_a_topology_ends(start, children):
    cluster = await start({"placement": "each", "actors": WATCHED})
    assert children()
    cluster.node.cells["supervisor"].crash(KeyError("a bug of ours"))
    async with asyncio.timeout(SECONDS):
        while children():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize("placement", ["one", "each"])
async def test_what_is_heavy_is_gone_before_its_next_life_begins(start, placement):
    cluster = await start({"placement": placement, "actors": WATCHED}, cast=cast("Heavy"))
    for life in (1, 2):
        await watched(cluster, f"up echo#{life}")
        assert (await cluster.node.ask("echo", Ping(), SECONDS)).value == 1, "former lives are there as well"
        cluster.node.tell("echo", Crash())
    await watched(cluster, "up echo#3")


@pytest.mark.parametrize("placement", ["one", "each"])
async def test_what_a_life_leaves_is_for_the_next_in_its_process_alone(start, placement):
    cluster = await start({"placement": placement, "actors": WATCHED}, cast=cast("Heir"))

    async def generations() -> int:
        return (await cluster.node.ask("echo", Ping(), SECONDS, again=True)).value

    assert await generations() == 0
    for count in (1, 2):
        await cluster.node.ask("supervisor", SwapActor(name="echo"), SECONDS)
        assert await generations() == count
    cluster.node.tell("echo", Crash())
    await watched(cluster, "up echo#4")
    assert await generations() == 0, "a crash leaves nothing"
