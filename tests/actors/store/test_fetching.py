"""What one host's store has, another host restores. Whatever goes wrong, no wrong block is used and none stays held."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from pageant.actors.store.actor import Store
from pageant.protocol.errors import TopologyError
from pageant.protocol.supervision import GetStatistics
from tests.actors.store.two_hosts import KIND, LAYOUT, OTHER_KIND, Manager, name_of, two_hosts

NAMES = [name_of(number) for number in range(1, 41)]


async def filled(a: Manager, b: Manager, names: list[bytes] = NAMES) -> None:
    """Save blocks at the first host, and wait until the second knows."""
    await a.save(names)
    await b.until(lambda: b.away >= {*names})


async def none_held(*managers: Manager) -> None:
    for manager in managers:
        await manager.at_rest()


@pytest.mark.parametrize("apart", [False, True])
async def test_blocks_of_another_host_are_restored_whole(apart):
    async with two_hosts(apart=apart) as (_, a, b):
        await filled(a, b)
        assert await b.restore(NAMES) == [True] * len(NAMES)
        there, here = await a.at_rest(), await b.at_rest()
        assert (here.fetched, here.unfetched, here.spoilt, there.served) == (40, 0, 0, 40)
        assert here.fetched_bytes == 40 * LAYOUT.slot_bytes and here.fetch_seconds > 0
        assert here.saved == 0 and here.blocks == 40
        assert {*NAMES} <= b.here
        # What has come is of this host: it is fetched no more, and the first host may have it from here.
        assert all(await b.restore(NAMES))
        assert (await b.at_rest()).fetched == 40
        await a.until(lambda: a.away >= {*NAMES})


@pytest.mark.parametrize("carrier", ["Short", "Liar", "Mixed", "Flipped", "Broken"])
async def test_what_does_not_come_whole_is_not_used(carrier, caplog):
    async with two_hosts({"carrier": f"tests.actors.store.two_hosts:{carrier}"}) as (_, a, b):
        await filled(a, b)
        assert await b.restore(NAMES) == [False] * len(NAMES)
        found = await b.at_rest()
        assert (found.fetched, found.unfetched, found.blocks) == (0, 40, 0)
        await none_held(a, b)
    said = {"Short": "bytes came; expected", "Broken": "no such device"}.get(carrier)
    assert said is None or said in caplog.text


async def test_a_fetch_that_takes_longer_than_the_patience_ends():
    async with two_hosts({"carrier": "tests.actors.store.two_hosts:Stuck"}) as (_, a, b):
        await filled(a, b)
        assert not any(await b.restore(NAMES, patience=0.05))
        await none_held(a, b)
        assert await a.restore(NAMES) == [True] * len(NAMES)


async def test_blocks_of_another_kind_are_not_fetched():
    """Another model's or dtype's blocks: even under the same names."""
    async with two_hosts(kinds=(KIND, OTHER_KIND)) as (_, a, b):
        await a.save(NAMES)
        await b.until(lambda: b.arena is not None)
        assert not any(await b.restore(NAMES, patience=5.0))
        assert not b.away
        await none_held(a, b)


async def test_more_blocks_than_there_is_room_for_are_fetched_as_far_as_they_fit():
    """The second host's store has a slot in each of its 16 chunks."""
    async with two_hosts(memory=("16MiB", "2MiB")) as (_, a, b):
        await filled(a, b)
        assert await b.restore(NAMES) == [True] * 16 + [False] * 24
        await none_held(a, b)


async def pid_of(manager: Manager, node: str) -> int:
    return (await manager.ask(f"node/{node}", GetStatistics())).pid


async def test_a_store_that_dies_is_forgotten_and_its_next_life_is_found():
    """While it hangs with a fetch in its hands, and is then killed: nothing of it is used, nothing stays held."""
    async with two_hosts(apart=True) as (_, a, b):
        await filled(a, b)
        pid = await pid_of(a, "a")
        os.kill(pid, signal.SIGSTOP)
        restoring = asyncio.ensure_future(b.restore(NAMES, patience=0.05))
        assert not any(await restoring)
        os.kill(pid, signal.SIGKILL)
        await b.until(lambda: not b.away)
        await none_held(b)
        assert not any(await b.restore(NAMES, patience=0.05))
        await a.until(lambda: a.arena is not None and a.arena.epoch > 1)
        await filled(a, b)
        assert all(await b.restore(NAMES))
        await none_held(a, b)


@pytest.mark.parametrize(
    ("carrier", "message"),
    [
        ("nixl", "expected link, module:Class of your own"),
        ("no_such_lab:Carrier", "there is no module 'no_such_lab'"),
        ("tests.actors.store.two_hosts:Gone", "has no 'Gone'"),
        ("tests.actors.store.two_hosts:Manager", "not a subclass"),
    ],
)
def test_a_carrier_that_cannot_be_had_is_refused(carrier, message):
    with pytest.raises(TopologyError, match=message) as caught:
        Store.Options(carrier=carrier)
    assert "carrier" in str(caught.value)
