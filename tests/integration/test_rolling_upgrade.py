"""Replicas of another version take the places of the first ones under load: no request is lost or changed."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

import pageant
from pageant import SamplingParams
from pageant.actors.runtime.version import VERSION
from pageant.scripts.chaos.load import Asked, Load, difference, undisturbed

# A fork would have the protocol of this checkout.
pytestmark = pytest.mark.usefixtures("real_processes")

SECONDS = 60
PACKAGE = Path(pageant.__file__).parent
OWNED = ("executor", "scheduler", "blocks", "detokenizer", "grammar")
SIMULATED = "pageant.actors.executor.simulated:SimulatedExecutor"
SETTINGS = {"num_blocks": 160, "max_num_seqs": 24, "seed": 5, "routing": "least"}
PARAMS = {"max_tokens": 100, "ignore_eos": True}
ASKED = [
    Asked(
        [9, 8, number],
        SamplingParams(seed=number, n=1 + number % 2, temperature=number % 2 / 1, **PARAMS),
    )
    for number in range(12)
]


def make_checkout(folder: Path, appended: str, kinds: Collection[str] = ()) -> Path:
    """Make a copy of the package whose protocol is another. Return the folder to import it from.

    Args:
        appended: the field that message types have more, as its source.
        kinds: the message types, or none for all.
    """
    package = folder / "pageant"
    package.mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if entry.name == "protocol":
            shutil.copytree(entry, package / "protocol", ignore=shutil.ignore_patterns("__pycache__"))
        elif not entry.name.startswith("."):
            (package / entry.name).symlink_to(entry)
    for module in (package / "protocol").glob("*.py"):
        lines = module.read_text().splitlines(keepends=True)
        for name, end in reversed(message_types(ast.parse("".join(lines)))):
            if not kinds or name in kinds:
                lines.insert(end, f"    {appended}\n")
        module.write_text("".join(lines))
    return folder


def message_types(tree: ast.Module) -> list[tuple[str, int]]:
    """Return the names of a module's message types, and their last lines."""
    bases = ("Message", "Request")
    return [
        (one.name, one.end_lineno or 0)
        for one in tree.body
        if isinstance(one, ast.ClassDef)
        and one.name not in bases
        and any(ast.unparse(base).split("[")[0] in bases for base in one.bases)
    ]


async def join(checkout: Path, address: str, node: str) -> asyncio.subprocess.Process:
    """Start a node of a checkout."""
    paths = [str(checkout), *filter(None, sys.path)]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pageant.actors.runtime.process", "--detached"),
        *("--join", address, "--name", node),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


async def end(process: asyncio.subprocess.Process) -> str:
    """End a node's process. Return what it has said."""
    if process.returncode is None:
        process.terminate()
    async with asyncio.timeout(SECONDS):
        _, said = await process.communicate()
    return said.decode()


async def test_replicas_of_a_later_version_replace_the_others_under_load(checkpoint, tmp_path, caplog):
    later = make_checkout(tmp_path / "later", "appended: dict[str, int] = {}")
    wrong = make_checkout(tmp_path / "wrong", "appended: int", ["Load"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    engine = pageant.Engine(
        checkpoint.path,
        replicas=2,
        listen=address,
        nodes={"front": {}, "engine-{replica}": {"host": "127.0.0.1"}},
        actors={name: {"node": "engine-{replica}"} for name in OWNED}
        | {"executor": {"class": SIMULATED, "node": "engine-{replica}"}},
        **SETTINGS,
    )
    nodes = ("engine-0", "engine-1")
    running = {node: await join(PACKAGE.parent / "none", address, node) for node in nodes}
    try:
        async with asyncio.timeout(SECONDS), engine:
            right = await undisturbed(engine, ASKED)
            load = Load(engine, ASKED, right)
            load.begin()
            link = engine._session._cluster.node.remote._link
            for number, node in enumerate(nodes):
                assert link.protocol_of(node) is None
                await engine.replicas.drain(f"replica-{number}", 0.0)
                await end(running[node])
                running[node] = await join(later, address, node)
                await engine.replicas.add(f"replica-{number}")
                assert link.protocol_of(node) is not None, "it is of the later version"
            refused = await join(wrong, address, "engine-0")
            _, said = await refused.communicate()
            assert refused.returncode == 1
            assert said.decode().count(f"speaks version {VERSION} (") == 1, "of the one"
            for part in (
                f"front speaks {VERSION} (",
                "Load.appended is required, and known to one of them alone",
            ):
                assert part in said.decode()
            again = await undisturbed(engine, ASKED)
            assert [difference(*pair) for pair in zip(again, right, strict=True)] == [None] * len(right)
            await load.end()
            assert (load.lost, load.changed) == ([], [])
            assert [(one.name, one.state) for one in await engine.replicas.ls()] == [
                ("replica-0", "up"),
                ("replica-1", "up"),
            ]
            assert not [one for one in caplog.records if "cannot read" in one.getMessage()]
    finally:
        for process in running.values():
            assert "cannot read" not in await end(process)
