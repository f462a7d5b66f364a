"""Clusters of test actors, over each way that messages can take."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.lives import RestartLimits
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.resolving import Cast, resolve
from pageant.actors.runtime.topology import parse

CAST = Cast({"echo": "runtime_players:Echo"}, groups=frozenset(), root_actors=frozenset({"watcher"}))
LIMITS = RestartLimits(delay_first=0.0, delay_max=0.0, failed_starts_max=3, early_deaths_max=3)

TRANSPORTS: dict[str, dict[str, Any]] = {
    "local": {"placement": "one"},
    "wired": {"placement": "one", "wire": "always"},
    "ipc": {"placement": "each"},
    "tcp": {"placement": "each", "transport": "tcp", "wire": "always"},
}

Start = Callable[..., Awaitable[Cluster]]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that nodes run on."""
    return {"node": new_event_loop}


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Transports: same node; same node through the codec; another process over ipc; over tcp on loopback."""
    return TRANSPORTS[request.param]


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """Processes below this one, but for those that were there before the test, such as the one that looks
    after the semaphores of a pool of processes."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [child for child in psutil.Process().children(recursive=True) if child not in before]


@pytest.fixture
async def start(children: Callable[[], list[psutil.Process]]) -> AsyncIterator[Start]:
    """Starts clusters; stops them at the end, and looks for what they left behind."""
    clusters: list[Cluster] = []
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))

    async def start_one(
        topology: dict[str, Any], *, cast: Cast = CAST, limits: RestartLimits = LIMITS, wait: bool = True
    ) -> Cluster:
        cluster = Cluster(resolve(parse(topology), cast), limits)
        clusters.append(cluster)
        await cluster.start()
        if wait:
            async for _ in cluster.startup():
                pass
        return cluster

    yield start_one
    for cluster in clusters:
        folder = cluster._folder
        await cluster.stop()
        assert folder is None or not os.path.exists(folder)  # noqa: ASYNC240
    assert children() == []
    assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}
    for thread in set(threading.enumerate()) - threads:
        if type(thread).__name__ == "GarbageCollectorThread":
            continue  # pyzmq's own, one per process, from the first large frame to the end of the process
        thread.join(5.0)
        assert not thread.is_alive(), thread
    assert errors == []


@pytest.fixture
async def cluster(start: Start, transport: dict[str, Any]) -> Cluster:
    """An `echo`, at the other end of each transport, and a `watcher` here."""
    return await start({**transport, "actors": {"watcher": {"class": "runtime_players:Watcher"}}})


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node alone, without a supervisor."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    node = Node("here")
    yield node
    await node.stop()
    assert asyncio.all_tasks() <= {asyncio.current_task()}
    assert errors == []
