"""Processes of nodes that are killed, stop or hang, and of a topology that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from runtime_players import GetLog, Ping, Until, pid_of

from tests.actors.runtime.guests import ENVIRONMENT, SECONDS

# The life of a process is what is tested.
pytestmark = pytest.mark.usefixtures("real_processes")

PARENT = """
import asyncio, sys
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse

async def main():
    cast = Cast({"echo": "runtime_players:" + sys.argv[1]}, frozenset(), frozenset())
    cluster = Cluster(resolve(parse({"placement": "each", "actors": {"echo": {"count": 2}}}), cast))
    await cluster.start()
    if sys.argv[1] == "Echo":
        async for _ in cluster.startup():
            pass
    print("up", cluster._folder, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("actor", ["Echo", "Slow", "Stuck"])
def test_no_process_outlives_a_parent_that_is_killed(actor):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, actor], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        word, folder = parent.stdout.readline().split()
        while len(children := psutil.Process(parent.pid).children(recursive=True)) < 2:
            pass  # they are being launched
        parent.kill()
    assert word == "up" and len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=SECONDS)
    assert alive == []
    for left in Path(folder).glob("*"):  # a killed parent cannot clean up
        left.unlink()
    Path(folder).rmdir()


async def test_a_process_that_stops_is_killed_and_replaced(start):
    watcher = {"watcher": {"class": "runtime_players:Watcher"}}
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 1.0}
    cluster = await start({"placement": "each", "actors": watcher, **terms})
    node = cluster.node
    await node.ask("watcher", Until(event="up echo#1"), SECONDS)
    process = psutil.Process(pid_of(cluster, "echo"))
    process.send_signal(signal.SIGSTOP)
    await node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert not psutil.pid_exists(process.pid) or process.status() == psutil.STATUS_ZOMBIE
    assert (await node.ask("echo", GetLog(), SECONDS)).incarnation == 2


async def test_a_process_that_hangs_holds_up_the_restart_of_no_other(start):
    other = {"other": {"class": "runtime_players:Echo"}, "watcher": {"class": "runtime_players:Watcher"}}
    cluster = await start({"placement": "each", "actors": other, "suspicion_seconds": 600.0})
    earlier, later = [
        actor.name
        for node in cluster.supervision.directory().nodes
        for actor in cluster.supervision.directory().actors
        if actor.node == node.name and actor.name in ("echo", "other")
    ]
    hung = psutil.Process(pid_of(cluster, earlier))
    hung.suspend()
    try:
        os.kill(pid_of(cluster, later), signal.SIGKILL)
        assert (await cluster.node.ask(later, Ping(value=7), SECONDS, again=True)).value == 7
        assert (await cluster.node.ask(later, GetLog(), SECONDS)).incarnation == 2
    finally:
        hung.resume()
    assert (await cluster.node.ask(earlier, GetLog(), SECONDS)).incarnation == 1


async def test_a_process_that_is_being_launched_when_the_topology_stops_ends_too(start, children):
    cluster = await start({"placement": "each", "actors": {"watcher": {"class": "runtime_players:Watcher"}}})
    launched = asyncio.Event()
    supervisor = cluster._supervisor
    launch = supervisor._launcher.launch

    async def tell_and_launch(node: str, incarnation: int):
        launched.set()
        return await launch(node, incarnation)

    supervisor._launcher.launch = tell_and_launch
    os.kill(pid_of(cluster, "echo"), signal.SIGKILL)
    await launched.wait()
    await cluster.stop()
    assert children() == []
