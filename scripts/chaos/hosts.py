"""Hosts on a switch, each a network namespace of this machine, whose cables can be pulled. Needs root."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNET = 0x40000000
NODE = (sys.executable, "-m", "pageant.actors.runtime.process", "--detached")


def can() -> bool:
    """Tell whether this user may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"pageant-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


class Lan:
    """Network of so many hosts, by name; the n-th has the address 10.77.0.n.

    Raises:
        subprocess.CalledProcessError: this user may not.
    """

    def __init__(self, *hosts: str) -> None:
        self._hosts = hosts
        self._prefix = f"pg{os.getpid() % 100_000}"
        self._switch = f"{self._prefix}-switch"
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host in self._hosts:
            name, port = self._namespace(host), self._port(host)
            _ip("netns", "add", name)
            pair = ("type", "veth", "peer", "eth", "netns", name)
            _ip("link", "add", port, "netns", self._switch, *pair)
            _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth")
            _ip("-n", name, "link", "set", "eth", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _port(self, host: str) -> str:
        return f"{self._prefix}{self._hosts.index(host) + 1}"

    def address(self, host: str) -> str:
        """Return the address where the others reach it."""
        return f"10.77.0.{self._hosts.index(host) + 1}"

    def on(self, host: str, *command: str) -> list[str]:
        """A command that runs there."""
        return ["ip", "netns", "exec", self._namespace(host), *command]

    def enter(self, host: str) -> None:
        """Move this thread, and those that it starts later, to the host."""
        with Path("/run/netns", self._namespace(host)).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {host}")

    def plug(self, host: str, way: str) -> None:
        """The cable of a host: `up` or `down`."""
        _ip("-n", self._switch, "link", "set", self._port(host), way)

    def remove(self) -> None:
        """Remove everything of it."""
        for name in (self._switch, *map(self._namespace, self._hosts)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Keeper:
    """Keeps a node running on a host, as a service manager would: whenever its process ends, another is started."""

    def __init__(self, lan: Lan, host: str, node: str, arguments: Sequence[str]) -> None:
        self._command = lan.on(host, *NODE, "--name", node, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep(), name=f"keeper of {node} on {host}")

    async def _keep(self) -> None:
        while True:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=subprocess.DEVNULL)
            await self._process.wait()

    def kill(self) -> None:
        """Kill the node's process with SIGKILL. Another is started."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def stop(self) -> None:
        """Stop the node, and keep it up no more."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
