"""The commands of a topology's manifests, run as Kubernetes would run them: a pod is a network namespace here."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pageant.actors.runtime.topology import parse
from pageant.actors.runtime.transport.keys import make_keys
from pageant.scripts.chaos.hosts import Lan, can
from pageant.scripts.kubernetes.manifests import (
    FOLDER,
    KEY,
    KEY_FILE,
    KEY_FOLDER,
    SECRET_FOLDER,
    Wanted,
    objects,
)
from pageant.scripts.kubernetes.pods import divide

pytestmark = pytest.mark.skipif(not can(), reason="network namespaces need root")
SECONDS = 120
PORT = 8000
FRONT, PODS = "front", ("zero", "one")
ASK = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


class Pods:
    """Runs containers of manifests: expands variables, and has folders and names of the cluster's DNS stand for theirs.

    Args:
        folder: holds what each pod mounts.
    """

    def __init__(self, lan: Lan, found: list[dict], folder: Path) -> None:
        self._lan, self._folder = lan, folder
        self.found = {(one["kind"], one["metadata"]["name"]): one for one in found}
        (folder / "etc").mkdir()
        (folder / "secret").mkdir()
        text = self.found["ConfigMap", "pageant-topology"]["data"]["topology.yaml"]
        (folder / "etc" / "topology.yaml").write_text(self._said(text, FRONT, 0))
        key = base64.b64decode(self.found["Secret", "pageant-key"]["data"][KEY_FILE])
        (folder / "secret" / KEY_FILE).write_bytes(key)

    def containers(self, kind: str, name: str) -> tuple[list[dict], dict]:
        """Return the containers that run first, and the one that stays."""
        spec = self.found[kind, name]["spec"]["template"]["spec"]
        return spec.get("initContainers", []), spec["containers"][0]

    def _said(self, text: str, host: str, index: int) -> str:
        own = self._folder / host
        own.mkdir(exist_ok=True)
        stands = {
            "$(POD_IP)": self._lan.address(host),
            "$(POD_INDEX)": str(index),
            "pageant-front:": f"{self._lan.address(FRONT)}:",
            f"{SECRET_FOLDER}/": f"{self._folder / 'secret'}/",
            f"{KEY_FOLDER}/": f"{own}/",
            f"{FOLDER}/": f"{self._folder / 'etc'}/",
        }
        for mark, meant in stands.items():
            text = text.replace(mark, meant)
        return text

    async def run(self, host: str, command: list[str], index: int = 0) -> asyncio.subprocess.Process:
        """Start a command in a pod."""
        said = [self._said(word, host, index) for word in command]
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PATH": paths, "POD_INDEX": str(index)}
        return await asyncio.create_subprocess_exec(
            *self._lan.on(host, *said), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    async def to_end(self, host: str, command: list[str], index: int = 0) -> tuple[int, str]:
        """Run a command to its end. Return its exit code, and what it printed."""
        process = await self.run(host, command, index)
        told, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, told.decode()

    async def begin(self, host: str, kind: str, name: str, index: int = 0) -> asyncio.subprocess.Process:
        """Begin a pod: what runs first is run until it succeeds, as a kubelet does."""
        first, container = self.containers(kind, name)
        for one in first:
            await self.until_done(host, one["command"], index)
        return await self.run(host, container["command"], index)

    async def until_done(self, host: str, command: list[str], index: int = 0) -> None:
        """Run a command again and again, until it succeeds."""
        code = -1
        while code:
            code, _ = await self.to_end(host, command, index)

    async def started(self, host: str, container: Mapping, index: int) -> None:
        """Wait until a pod's startup probe succeeds."""
        await self.until_done(host, container["startupProbe"]["exec"]["command"], index)

    async def end(
        self, host: str, container: Mapping, process: asyncio.subprocess.Process, index: int
    ) -> str:
        """End a pod. Return what its hook said."""
        code, told = await self.to_end(host, container["lifecycle"]["preStop"]["exec"]["command"], index)
        assert code == 0
        process.send_signal(signal.SIGTERM)
        assert await process.wait() in (0, -signal.SIGTERM)
        return told


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    lan = Lan(FRONT, *PODS)
    yield lan
    lan.remove()


async def test_pods_serve_and_are_drained_and_come_again(lan, checkpoint, tmp_path):
    topology = {
        "model": str(checkpoint.path),
        **{"dtype": "float32", "threads": 1, "num_blocks": 64, "max_num_seqs": 8},
        "replicas": 2,
    }
    found = [*objects(divide(parse(topology), KEY), Wanted("pageant", "", patience=1), make_keys())]
    pods = Pods(lan, found, tmp_path)
    server = ("Deployment", "pageant")
    _, node = pods.containers("StatefulSet", "pageant-engine")
    _, root = pods.containers(*server)
    health = root["startupProbe"]["httpGet"]
    processes: list[asyncio.subprocess.Process] = []

    async def ask(host: str, path: str, body: Mapping | None = None) -> tuple[int, str]:
        url = f"http://{lan.address(FRONT)}:{PORT}{path}"
        return await pods.to_end(
            host, [sys.executable, "-c", ASK, url, "" if body is None else json.dumps(body)]
        )

    try:
        async with asyncio.timeout(SECONDS):
            front = await pods.begin(FRONT, *server)
            processes.append(front)
            engines = await asyncio.gather(
                *(pods.begin(host, "StatefulSet", "pageant-engine", index) for index, host in enumerate(PODS))
            )
            processes += engines
            await asyncio.gather(*(pods.started(host, node, index) for index, host in enumerate(PODS)))
            assert (await ask(FRONT, health["path"]))[0] == 0, "a replica takes requests"
            body = {"model": str(checkpoint.path), "prompt": [9, 8, 7], "max_tokens": 5, "temperature": 0}
            code, first = await ask("one", "/v1/completions", body)
            assert code == 0, first
            told = await pods.end("one", node, engines[1], 1)
            assert "replica-0" in told and "replica-1" not in told
            code, second = await ask("zero", "/v1/completions", body)
            assert code == 0 and json.loads(second)["choices"] == json.loads(first)["choices"]
            processes.append(await pods.begin("one", "StatefulSet", "pageant-engine", 1))
            await pods.started("one", node, 1)
            listing = ["pageant", "replicas", "ls", "--topology", "tcp://pageant-front:5700", "--keys", KEY]
            code, listed = await pods.to_end("zero", listing)
            assert code == 0 and [line.split()[:2] for line in listed.splitlines() if "replica-" in line] == [
                ["replica-0", "up"],
                ["replica-1", "up"],
            ]
            front.send_signal(signal.SIGTERM)
            assert await front.wait() == 0
            assert [await one.wait() for one in (engines[0], processes[-1])] == [0, 0]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
