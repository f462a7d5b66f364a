"""A topology with a node that joins by itself, and processes that join it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from pageant.actors.runtime.cluster import Cluster

SECONDS = 20.0
GUEST = {
    "nodes": {"front": {}, "b": {"host": "127.0.0.1"}},
    "listen": "tcp://127.0.0.1:*",
    "actors": {"echo": {"node": "b"}, "watcher": {"class": "runtime_players:Watcher"}},
}
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


async def join(cluster: Cluster, name: str, *more: str, **keywords) -> asyncio.subprocess.Process:
    """Start a process whose node joins a topology under a name."""
    arguments = ["--join", cluster.endpoint or "", "--name", name, "--detached", *more]
    command = [sys.executable, "-m", "pageant.actors.runtime.process", *arguments]
    return await asyncio.create_subprocess_exec(
        *command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **keywords
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Wait for a process to end; return its code and standard error."""
    async with asyncio.timeout(SECONDS):
        _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()


def life_of(cluster: Cluster) -> str:
    """Return the lines that a guest prints when it joins and when the topology ends."""
    return f"pageant node b: joined the topology at {cluster.endpoint}\npageant node b: left the topology\n"
