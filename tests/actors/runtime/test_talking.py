"""tell, ask, stream and watch mean the same over every transport."""

from __future__ import annotations

import asyncio
import os

import pytest
from runtime_players import (
    CountInOrder,
    CountTo,
    Crash,
    Fail,
    GetLog,
    Hold,
    HoldBeside,
    Note,
    Ping,
    Pong,
    Quiet,
    Reverse,
    Unheard,
    Until,
    WhereAmI,
)

from pageant.actors.runtime.cluster import Cluster
from pageant.protocol.arrays import int32
from pageant.protocol.errors import DeadlineExceeded, NoSuchActor, Overloaded, PeerGone, RemoteError

SECONDS = 20.0


async def ask(cluster: Cluster, request, timeout: float = SECONDS):
    return await cluster.node.ask("echo", request, timeout)


async def happened(cluster: Cluster, event: str, address: str = "echo"):
    return await cluster.node.ask(address, Until(event=event), SECONDS)


async def ask_in_background(cluster: Cluster, request) -> asyncio.Task:
    """An ask whose handler has begun."""
    task = asyncio.create_task(ask(cluster, request))
    await happened(cluster, f"began {request.name}")
    return task


async def give_up(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def host(cluster: Cluster):
    """The counters of the node where `echo` lives, and its own."""
    for statistics in await cluster.statistics():
        if "echo" in statistics.actors:
            return statistics, statistics.actors["echo"]
    raise AssertionError("echo lives nowhere")


def conversations(cluster: Cluster) -> int:
    return len(cluster.node.remote._asked) + len(cluster.node.remote._answering)


async def test_an_ask_is_answered_by_the_typed_reply(cluster):
    reply = await ask(cluster, Ping(value=7))
    assert isinstance(reply, Pong) and reply.value == 7
    assert reply.text == f"node/{cluster.node.name}"
    assert await ask(cluster, Quiet()) is None
    assert conversations(cluster) == 0


async def test_tells_arrive_in_order(cluster):
    for index in range(600):
        cluster.node.tell("echo", Note(text=str(index)))
    log = await happened(cluster, "599")
    assert log.events == tuple(map(str, range(600)))


async def test_a_failing_handler_fails_the_ask_alone(cluster):
    with pytest.raises(RemoteError) as caught:
        await ask(cluster, Fail(text="no such thing"))
    assert (caught.value.actor, caught.value.cause) == ("echo", "LookupError")
    assert caught.value.detail == "no such thing"
    assert (await ask(cluster, GetLog())).incarnation == 1


async def test_an_ask_that_nobody_takes_names_what_is_taken(cluster):
    with pytest.raises(RemoteError, match=r"echo takes no Unheard; it takes .*Ping"):
        await ask(cluster, Unheard())


async def test_a_stream_brings_every_item_in_order_and_ends(cluster):
    items = [item.value async for item in cluster.node.stream("echo", CountTo(n=300), SECONDS)]
    assert items == list(range(300))
    assert [item.value async for item in cluster.node.stream("echo", CountInOrder(n=3), SECONDS)] == [0, 1, 2]
    assert [item.value async for item in cluster.node.stream("echo", CountTo(n=0), SECONDS)] == []
    assert [item.value async for item in cluster.node.stream("echo", Ping(value=4), SECONDS)] == [4]
    assert conversations(cluster) == 0


async def test_a_stream_that_fails_brings_what_came_before(cluster):
    seen = []
    with pytest.raises(RemoteError, match="no 3"):
        async for item in cluster.node.stream("echo", CountTo(n=9, fail_at=3), SECONDS):
            seen.append(item.value)
    assert seen == [0, 1, 2]
    assert (await ask(cluster, Ping())).value == 0


async def test_asking_for_a_stream_is_refused_and_blocks_nobody(cluster):
    for request in (CountTo(n=10**9), CountInOrder(n=10**9)):
        with pytest.raises(RemoteError, match=r"use stream\(\)"):
            await ask(cluster, request)
    assert (await ask(cluster, Ping(value=1))).value == 1


async def test_leaving_a_stream_cancels_its_producer(cluster):
    stream = cluster.node.stream("echo", CountTo(n=10**9), SECONDS)
    async for item in stream:
        if item.value == 100:
            break
    await stream.aclose()
    await happened(cluster, "count ended")
    assert conversations(cluster) == 0


async def test_credit_holds_the_producer_back(cluster):
    stream = cluster.node.stream("echo", CountTo(n=10**9), SECONDS, credit=8)
    taken = 0
    async for _ in stream:
        taken += 1
        produced = (await ask(cluster, GetLog())).events.count("produced")
        assert produced <= taken + 2 * 8
        if taken == 50:
            break
    await stream.aclose()


async def test_cancelling_an_ask_cancels_the_running_handler(cluster):
    task = await ask_in_background(cluster, Hold(name="x"))
    await give_up(task)
    await happened(cluster, "cancellation of x")
    assert (await ask(cluster, Ping(value=2))).value == 2
    assert (await ask(cluster, GetLog())).incarnation == 1
    assert conversations(cluster) == 0


async def test_a_cancelled_ask_that_waits_its_turn_never_begins(cluster):
    first = await ask_in_background(cluster, Hold(name="first"))
    second = asyncio.create_task(ask(cluster, Hold(name="second")))
    await asyncio.sleep(0)
    await give_up(second)
    await give_up(first)
    await ask(cluster, Ping())
    assert "began second" not in (await ask(cluster, GetLog())).events


async def test_cancelling_one_concurrent_ask_leaves_the_other(cluster):
    one = await ask_in_background(cluster, HoldBeside(name="one"))
    two = await ask_in_background(cluster, HoldBeside(name="two"))
    await give_up(one)
    log = await happened(cluster, "cancellation of one")
    assert "cancelled two" not in log.events
    await give_up(two)
    await happened(cluster, "cancellation of two")


async def test_a_deadline_ends_the_ask_and_its_handler(cluster):
    with pytest.raises(DeadlineExceeded, match=r"echo did not answer Hold within 0.01 s"):
        await ask(cluster, Hold(name="late"), 0.01)
    assert (await ask(cluster, Ping(value=3))).value == 3
    events = (await ask(cluster, GetLog())).events
    assert events in ((), ("began late", "cancelled late", "cancellation of late"))
    assert conversations(cluster) == 0


async def test_a_stream_without_items_meets_its_deadline(cluster):
    with pytest.raises(DeadlineExceeded, match="no item within"):
        async for _ in cluster.node.stream("echo", HoldBeside(name="dry"), 0.05):
            pass
    await happened(cluster, "cancellation of dry")


async def test_asking_nobody_says_who_was_meant(cluster):
    with pytest.raises(NoSuchActor, match=r"no actor 'ecko' here; did you mean 'echo'"):
        await cluster.node.ask("ecko", Ping(), SECONDS)


async def test_arrays_are_read_only_to_both_sides(cluster):
    ids = int32(range(50))
    reply = await ask(cluster, Reverse(ids=ids))
    assert reply.ids.tolist() == list(range(49, -1, -1))
    assert not reply.received_writeable and not reply.ids.flags.writeable and not ids.flags.writeable


async def test_a_large_array_crosses_whole(cluster):
    ids = int32(range(300_000))
    reply = await ask(cluster, Reverse(ids=ids))
    assert (reply.ids[::-1] == ids).all()


async def test_offloaded_work_runs_on_a_thread_of_the_actor(cluster):
    place = await ask(cluster, WhereAmI())
    assert place.text.startswith("pageant echo")
    assert (place.value != os.getpid()) == (cluster.topology.placement == "each")


@pytest.mark.parametrize("how", ["handler", "spawn"])
async def test_a_crash_fails_what_is_in_flight_and_the_next_life_serves_the_next(cluster, how):
    held = await ask_in_background(cluster, HoldBeside(name="beside"))
    await happened(cluster, "up echo#1", "watcher")
    cluster.node.tell("echo", Crash(how=how))
    with pytest.raises(PeerGone):
        await held
    await happened(cluster, "up echo#2", "watcher")
    log = await happened(cluster, "down echo#1", "watcher")
    assert log.events == ("up echo#1", "down echo#1", "up echo#2")
    assert (await ask(cluster, GetLog())).incarnation == 2
    assert conversations(cluster) == 0


async def test_a_full_mailbox_refuses_asks_and_counts_tells(start, transport):
    cluster = await start({**transport, "actors": {"echo": {"options": {"capacity": 3}}}})
    held = await ask_in_background(cluster, Hold(name="x"))
    waiting = [asyncio.create_task(ask(cluster, Ping(value=value))) for value in range(5)]
    for task in waiting[3:]:
        with pytest.raises(Overloaded, match="echo has 3 messages waiting"):
            await task
    cluster.node.tell("echo", Note(text="lost"))
    await give_up(held)
    assert [(await task).value for task in waiting[:3]] == [0, 1, 2]
    statistics, echo = await host(cluster)
    assert statistics.dead_letters == {"mailbox full": 1}
    assert echo.mailbox_depth_max == 3


async def test_the_counters_count(cluster):
    for value in range(10):
        await ask(cluster, Ping(value=value))
    statistics, echo = await host(cluster)
    assert echo.incarnation == 1 and echo.handled == 10 and echo.seconds > 0
    assert echo.mailbox_depth == 0 and echo.stale == 0 and echo.tasks == 0
    assert statistics.refused == 0 and statistics.dead_letters == {}
    assert echo.kinds.keys() == {"Ping"}
    assert (echo.kinds["Ping"].count, echo.kinds["Ping"].seconds) == (10, echo.seconds)
    assert statistics.cpu_seconds > 0 and statistics.resident_bytes > 2**20
    if cluster.topology.placement == "each":
        assert statistics.received >= 11 and statistics.sent >= 11
        assert statistics.pid != os.getpid()
        traffic = {(entry.actor, entry.kind): entry for entry in statistics.traffic}
        pings, pongs = traffic["echo", "Ping"], traffic["echo", "Pong"]
        assert (pings.received, pings.sent, pongs.sent, pongs.received) == (10, 0, 10, 0)
        assert pings.received_bytes > 100 and pongs.sent_bytes > 100


async def test_tells_to_nobody_are_dead_letters(cluster):
    cluster.node.tell("nobody", Note(text="x"))
    assert cluster.node.dead_letters == {"no such actor": 1}
