"""Nodes on a real Ray cluster of this machine: they serve, are missed by nobody when they die, and leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.runtime.launcher import Joining, NodeNeeds
from pageant.actors.runtime.ray_launcher import NoRoom, RayLauncher
from pageant.protocol.errors import StartupError

DEMO = str(Path(__file__).parents[2] / "models" / "demo")
SECONDS = 60.0
SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 64, "max_num_seqs": 8, "transport": "tcp"}


HEAD = """
import sys

import ray

print(ray.init(num_cpus=3, include_dashboard=False).address_info["address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start a Ray cluster of 3 CPUs on this machine, in a process of its own, and connect to it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'pageant[ray]'")
    with subprocess.Popen(
        [sys.executable, "-c", HEAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},
    ) as head:
        assert head.stdin is not None and head.stdout is not None
        address = head.stdout.readline().strip()
        assert address, "Ray did not start; its reason is in the captured output"
        ray.init(address, log_to_driver=False, logging_level="error")
        yield ray
        ray.shutdown()
        head.stdin.close()


def nodes_of_ray() -> list[psutil.Process]:
    """Return the processes of nodes, which are children of Ray's workers."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or ()
        if "pageant.actors.runtime.process" in line and "--name" in line:
            name = line[line.index("--name") + 1]
            if name.startswith("far-") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Return once this is true, which is a matter of time."""
    async with asyncio.timeout(SECONDS):
        while not await true():
            pass


async def nothing_is_held(ray: Any) -> None:
    """Return when the whole cluster is free again, which it says after a while."""
    groups = await asyncio.to_thread(ray.util.placement_group_table)
    assert {group["state"] for group in groups.values()} <= {"REMOVED"}

    async def is_free() -> bool:
        free = await asyncio.to_thread(ray.available_resources)
        return free.get("CPU") == 3.0

    await until(is_free)


REPLICAS = {
    "replicas": 2,
    "nodes": {"front": {}, "far-{replica}": {"process": True, "launcher": "ray"}},
    "actors": {
        name: {"node": "far-{replica}"} for name in ("executor", "scheduler", "blocks", "detokenizer")
    },
}
GROUP = {
    "nodes": {"front": {}, **{f"far-{rank}": {"process": True, "launcher": "ray"} for rank in (0, 1)}},
    "actors": {"executor": {"nodes": ["far-0", "far-1"], "options": {"tensor_parallel": 2}}},
}


@pytest.mark.parametrize("topology", [REPLICAS, GROUP], ids=["replicas", "group"])
async def test_nodes_on_ray_serve_outlive_a_death_and_leave_nothing(ray, topology):
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompts = [[9, 8, number] for number in range(10, 18)]
    async with pageant.Engine(DEMO, topology=topology, **SETTINGS) as engine:
        right = [(await engine.complete(prompt, params)).outputs[0].token_ids for prompt in prompts]
        first = {process.pid for process in nodes_of_ray()}
        assert len(first) == 2
        going = [asyncio.create_task(engine.complete(prompt, params)) for prompt in prompts]
        os.kill(nodes_of_ray()[0].ppid(), signal.SIGKILL)  # the Ray actor, and its node with it
        found = [(await one).outputs[0].token_ids for one in going]
        assert found == right

        async def is_whole() -> bool:
            pids = {process.pid for process in await asyncio.to_thread(nodes_of_ray)}
            return len(pids) == 2 and pids != first

        await until(is_whole)
        again = await asyncio.gather(*(engine.complete(prompt, params) for prompt in prompts))
        assert [one.outputs[0].token_ids for one in again] == right
    assert nodes_of_ray() == []
    await nothing_is_held(ray)


async def test_room_that_there_is_not_is_an_error_by_name(ray):
    topology = {
        "nodes": {
            "front": {},
            "far": {"process": True, "launcher": {"class": "ray", "options": {"cpus": 50}}},
        },
        "actors": {"executor": {"node": "far"}},
    }
    engine = pageant.Engine(DEMO, topology=topology, **SETTINGS)
    text = "far asked Ray for 50 CPU, and the Ray cluster's hosts have 3 CPU at most"
    with pytest.raises(StartupError, match=text):
        await engine.start()
    await engine.close()


async def test_room_that_others_have_is_waited_for_no_longer_than_the_deadline(ray):
    launcher = RayLauncher(Joining("tcp://127.0.0.1:1", ""), cpus=2, deadline=1.0)
    launcher.learn("one", NodeNeeds(None, ("one", "other")))
    other = RayLauncher(Joining("tcp://127.0.0.1:1", ""), cpus=2)
    await other._connect()
    await other._room("holder")
    began = time.monotonic()
    with pytest.raises(
        NoRoom, match=r"single asked Ray for 2 CPU, and the Ray cluster had 1 CPU free within 1 s"
    ):
        await launcher.launch("single", 1)
    assert time.monotonic() - began < 30
    await other.close()
    await launcher.close()
