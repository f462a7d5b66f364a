"""Nodes that join a topology by hand, and come back after they were given up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal

import pytest
from runtime_players import GetLog, Ping, Until, pid_of

from pageant.actors.runtime.process import _run, parse_arguments
from pageant.protocol.errors import PeerGone
from tests.actors.runtime.guests import GUEST, SECONDS, ended, join, life_of


async def test_a_node_that_is_started_by_hand_joins_serves_and_ends_with_the_topology(start):
    cluster = await start(GUEST, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    assert (await cluster.node.ask("echo", Ping(value=3), SECONDS)).value == 3
    await cluster.stop()
    assert await ended(guest) == (0, life_of(cluster))


async def test_a_guest_that_comes_again_replaces_its_former_life(start):
    cluster = await start(GUEST, wait=False)
    first = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    first.kill()
    await ended(first)
    second = await join(cluster, "b")
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).incarnation == 2
    await cluster.stop()
    assert await ended(second) == (0, life_of(cluster))


async def test_what_is_waited_for_is_told_with_the_command_that_starts_it(start, monkeypatch):
    told: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr("pageant.actors.runtime.cluster.NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(
        "pageant.actors.runtime.cluster.log.warning", lambda text, *words: told.put_nowait(text % words)
    )
    cluster = await start(GUEST, wait=False)
    starting = asyncio.create_task(anext(aiter(cluster.startup()), None))
    async with asyncio.timeout(SECONDS):
        assert await told.get() == f"waiting for node b: pageant node --join {cluster.endpoint} --name b"
    starting.cancel()


async def test_a_guest_whose_connection_broke_joins_again(start):
    cluster = await start(GUEST, wait=False)
    port = int((cluster.endpoint or "").rpartition(":")[2])
    open_writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        open_writers.extend((writer, onward))
        await asyncio.gather(carry(reader, onward), carry(there, writer))

    between = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{between.sockets[0].getsockname()[1]}"
    guest = await join(cluster, "b", "--join", address)
    async for _ in cluster.startup():
        pass
    for writer in open_writers:
        writer.transport.abort()
    await cluster.node.ask("watcher", Until(event="up echo#2"), SECONDS)
    assert (await cluster.node.ask("echo", GetLog(), SECONDS)).incarnation == 2
    await cluster.stop()
    assert (await ended(guest))[0] == 0
    between.close()


async def test_a_guest_that_nobody_expects_is_told_so(start):
    cluster = await start(GUEST, wait=False)
    code, errors = await ended(await join(cluster, "c"))
    assert code == 1
    assert errors.strip() == "pageant node c: no node called 'c' is expected to join front"


@pytest.mark.parametrize("address", ["foo", "tcp://", "tcp://10.0.0.1", "udp://10.0.0.1:5700", ""])
async def test_an_address_that_no_node_can_have_is_named_at_once(capsys, address):
    options = parse_arguments(["--join", address, "--name", "b", "--detached"])
    assert await _run(options) == 1
    assert capsys.readouterr().err == (
        f"pageant node b: --join: found {address!r}; expected an address such as tcp://10.0.0.1:5700\n"
    )


async def test_a_guest_that_stops_is_replaced_and_when_it_wakes_nothing_of_it_is_believed(start):
    actors = GUEST["actors"] | {"echo": {"class": "runtime_players:Talker", "node": "b"}}
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, "actors": actors, **terms}, wait=False)
    first = await join(cluster, "b", "--rejoin-seconds", "0")
    async for _ in cluster.startup():
        pass
    node = cluster.node
    await node.ask("watcher", Until(event="up echo#1"), SECONDS)
    first.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(node.ask("echo", Ping(value=1), SECONDS))  # which it will find when it wakes
    second = await join(cluster, "b")
    assert b"node b waits: another b is there, or has not been given up yet" in await second.stderr.readline()
    await node.ask("watcher", Until(event="down echo#1"), SECONDS)
    with pytest.raises(PeerGone):
        await asked
    await node.ask("watcher", Until(event="up echo#2"), SECONDS)
    refused = node.remote.refused
    first.send_signal(signal.SIGCONT)
    code, errors = await ended(first)
    assert code == 1 and "has not heard of the root in time" in errors
    await node.ask("watcher", Until(event="life 2"), SECONDS)
    assert node.remote.refused > refused, "it said something"
    events = (await node.ask("watcher", GetLog(), SECONDS)).events
    heard = [event for event, _ in itertools.groupby(events)]
    assert heard == ["up echo#1", "life 1", "down echo#1", "up echo#2", "life 2"]
    await cluster.stop()
    assert await ended(second) == (0, life_of(cluster))


async def test_a_guest_whose_lease_is_over_comes_back_as_a_new_incarnation_with_nothing_of_the_old(start):
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, **terms}, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    node = cluster.node
    await node.ask("echo", Ping(value=1), SECONDS)
    for life in (2, 3):
        guest.send_signal(signal.SIGSTOP)
        await node.ask("watcher", Until(event=f"down echo#{life - 1}"), SECONDS)
        guest.send_signal(signal.SIGCONT)
        await node.ask("watcher", Until(event=f"up echo#{life}"), SECONDS)
        assert pid_of(cluster, "b") == guest.pid
        assert (await node.ask("echo", GetLog(), SECONDS)).incarnation == life
    nodes = cluster.supervision.directory().nodes
    assert [entry.incarnation for entry in nodes if entry.name == "b"] == [3]
    assert (await node.ask("echo", Ping(value=1), SECONDS)).value == 1
    await cluster.stop()
    code, errors = await ended(guest)
    assert code == 0 and errors.count("pageant node b: its lease is over; it joins again") == 2


async def test_a_guest_that_does_not_find_the_topology_again_says_so_and_ends(start):
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, **terms}, wait=False)
    guest = await join(cluster, "b", "--rejoin-seconds", "0.5")
    async for _ in cluster.startup():
        pass
    guest.send_signal(signal.SIGSTOP)
    await cluster.node.ask("watcher", Until(event="down echo#1"), SECONDS)
    await cluster.stop()
    guest.send_signal(signal.SIGCONT)
    code, errors = await ended(guest)
    lines = [line for line in errors.splitlines() if line.startswith("pageant node b")]
    joined, lapsed, refused = lines
    assert code == 1 and joined == f"pageant node b: joined the topology at {cluster.endpoint}"
    assert lapsed.endswith("its lease is over; it joins again")
    assert refused.endswith("did not answer within 0.5 s") and "Traceback" not in errors


async def test_a_guest_comes_back_to_a_topology_that_was_started_again(start):
    terms = {"heartbeat_seconds": 0.1, "suspicion_seconds": 0.5}
    cluster = await start({**GUEST, **terms}, wait=False)
    guest = await join(cluster, "b")
    async for _ in cluster.startup():
        pass
    guest.send_signal(signal.SIGSTOP)
    await cluster.node.ask("watcher", Until(event="down echo#1"), SECONDS)
    await cluster.stop()
    again = await start({**GUEST, **terms, "listen": cluster.endpoint}, wait=False)
    guest.send_signal(signal.SIGCONT)
    async for _ in again.startup():
        pass
    assert (await again.node.ask("echo", Ping(value=2), SECONDS)).value == 2
    await again.stop()
    assert (await ended(guest))[0] == 0
