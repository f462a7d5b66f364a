"""Processes on this host, and the one that is kept spare."""

from __future__ import annotations

import psutil
import pytest
from runtime_players import GetLog, Until, pid_of

from pageant.actors.runtime import supervisor
from pageant.actors.runtime.launcher import Joining, LocalProcesses

SECONDS = 20.0
WATCHED = {"placement": "each", "actors": {"watcher": {"class": "runtime_players:Watcher"}}}


@pytest.fixture
async def launcher():
    launcher = LocalProcesses(
        Joining("ipc://nowhere", "ipc:///tmp/{name}-{incarnation}.sock", ("--endless",))
    )
    yield launcher
    await launcher.close()
    assert psutil.Process().children() == []


async def prepared(launcher: LocalProcesses) -> int:
    await launcher.prepare(["pageant.actors.runtime.agent"])
    (spare,) = psutil.Process().children()
    return spare.pid


async def test_the_next_life_of_whoever_dies_first_is_the_spare(start, monkeypatch):
    monkeypatch.setattr(supervisor, "SPARE_AFTER_SECONDS", 0.0)
    cluster = await start(WATCHED)
    first = pid_of(cluster, "echo")
    while not (spares := [one for one in psutil.Process().children() if one.pid != first]):
        await cluster.node.ask("watcher", GetLog(), SECONDS)
    psutil.Process(first).kill()
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert pid_of(cluster, "echo") == spares[0].pid
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).incarnation == 2


async def test_a_spare_reads_its_command_line_when_it_is_needed(launcher, capfd):
    spare = await prepared(launcher)
    process = await launcher.launch("b", 1)
    assert process.pid == spare
    assert "exit code 2" in await process.wait()
    assert "unrecognized arguments: --endless" in capfd.readouterr().err


async def test_one_spare_is_enough_and_it_ends_when_nobody_needs_it(launcher):
    assert await prepared(launcher) == await prepared(launcher)
    await launcher.close()
    assert psutil.Process().children() == []
    await launcher.prepare([])
    assert psutil.Process().children() == []


@pytest.mark.parametrize("how", ["killed", "of another environment"])
async def test_a_spare_that_is_of_no_use_is_not_used(launcher, how, monkeypatch):
    spare = await prepared(launcher)
    if how == "killed":
        psutil.Process(spare).kill()
        await launcher._spare._process.wait()
    else:
        monkeypatch.setenv("PAGEANT_TEST_OF_SPARES", "1")
    process = await launcher.launch("b", 1)
    assert process.pid != spare
    await process.wait()
