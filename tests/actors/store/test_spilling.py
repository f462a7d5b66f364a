"""Blocks that a store has no room for in memory go to a file, and come back whole or not at all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pageant.actors.runtime.disk_file import DiskFile
from pageant.actors.store.actor import Store
from pageant.protocol.errors import StartupError
from pageant.protocol.storing import ForgetStored, GetStoreStatistics
from tests.actors.store.two_hosts import KIND, SECONDS, Manager, name_of, two_hosts

NAMES = [name_of(number) for number in range(1, 49)]
SLOTS = 16
"""Of a memory of 2 MiB: one in each chunk."""
SPARE = 8
"""Of those, how many can be given to others without losing a block."""
MEMORY = ("2MiB", "16MiB")


async def save_slowly(manager: Manager, names: Sequence[bytes]) -> None:
    """Save blocks no faster than the disk takes those that give way to them."""
    for count in range(1, len(names) + 1):
        await manager.save(names[count - 1 : count])
        async with asyncio.timeout(SECONDS):
            while True:
                found = await manager.ask(manager.options.store, GetStoreStatistics(), SECONDS)
                if found.saved == count and (count < SLOTS or found.spilled >= count - SLOTS + SPARE):
                    break
                await asyncio.sleep(0)


def on_disk(folder: Path, size: str = "16MiB") -> dict[str, str]:
    return {"disk": size, "disk_path": str(folder)}


async def test_blocks_come_back_from_the_disk_whole(tmp_path):
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, _b):
        await save_slowly(a, NAMES)
        await a.until(lambda: a.here | a.away >= {*NAMES})
        assert len(a.here) <= SLOTS
        for start in range(0, len(NAMES) - SLOTS, 8):
            assert await a.restore(NAMES[start : start + 8]) == [True] * 8
        found = await a.at_rest()
        assert found.loaded >= len(NAMES) - SLOTS and not (found.unloaded or found.spoilt)
        assert found.saved == len(NAMES) and found.disk_blocks >= len(NAMES) - SLOTS
        assert os.listdir(tmp_path) == [], "the file has no name"


async def test_another_host_has_blocks_of_this_ones_disk(tmp_path):
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, b):
        await save_slowly(a, NAMES)
        await b.until(lambda: b.away >= {*NAMES})
        assert await b.restore(NAMES[:SLOTS]) == [True] * SLOTS
        assert (await b.at_rest()).fetched == SLOTS
        assert (await a.at_rest()).loaded >= SPARE


async def test_the_file_is_bounded_and_the_eldest_blocks_give_way(tmp_path):
    async with two_hosts(on_disk(tmp_path, "2MiB"), memory=MEMORY) as (_, a, _b):
        await save_slowly(a, NAMES)
        found = await a.at_rest()
        assert found.disk_blocks <= SLOTS and found.disk_evictions >= len(NAMES) - 2 * SLOTS - SPARE
        await a.until(lambda: not (a.here | a.away) & {*NAMES[:8]})
        assert await a.restore(NAMES[:8]) == [False] * 8
        assert await a.restore(NAMES[-8:]) == [True] * 8


@pytest.mark.parametrize("fault", ["flipped", "short", "unreadable"])
async def test_a_block_that_is_not_whole_on_the_disk_is_not_used(tmp_path, monkeypatch, fault):
    read = DiskFile.read

    def faulty(self, at, into) -> None:
        if fault == "unreadable":
            raise OSError("input/output error")
        read(self, at, into)
        if fault == "flipped":
            into[len(into) // 2] ^= 1
        else:
            into[-len(into) // 4 :] = 0

    monkeypatch.setattr(DiskFile, "read", faulty)
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, _b):
        await save_slowly(a, NAMES)
        first = NAMES[:SPARE]
        await a.until(lambda: not a.here & {*first} and a.away >= {*first})
        assert await a.restore(first) == [False] * SPARE
        found = await a.at_rest()
        assert (found.loaded, found.unloaded) == (0, SPARE)
        await a.until(lambda: not (a.here | a.away) & {*first})


async def test_a_disk_that_is_full_costs_only_what_it_has_no_room_for(tmp_path, monkeypatch, caplog):
    def full(self, at, data) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DiskFile, "write", full)
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, _b):
        for name in NAMES:
            await a.save([name])
        await a.at_rest()
        assert await a.restore(NAMES[-SPARE:]) == [True] * SPARE
        found = await a.at_rest()
        assert (found.spilled, found.disk_blocks) == (0, 0)
    (said,) = [one.getMessage() for one in caplog.records if "no more blocks" in one.getMessage()]
    assert "No space left on device" in said


async def test_blocks_that_are_forgotten_are_gone_from_the_disk(tmp_path):
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, _b):
        await save_slowly(a, NAMES)
        a.tell(a.options.store, ForgetStored(kind=KIND))
        await a.until(lambda: not (a.here | a.away))
        assert not any(await a.restore(NAMES[:4]))
        assert (await a.at_rest()).disk_blocks == 0


@pytest.fixture
def stores(monkeypatch) -> list[Store]:
    """The stores that have started: one of each host, and those that replaced one."""
    found: list[Store] = []
    on_start = Store.on_start

    async def noted(self) -> None:
        found.append(self)
        await on_start(self)

    monkeypatch.setattr(Store, "on_start", noted)
    return found


def gate(monkeypatch, method: str) -> tuple[threading.Event, threading.Event]:
    """Have a method of files say that it has begun, and wait until it may go on."""
    ungated, begun, go_on = getattr(DiskFile, method), threading.Event(), threading.Event()

    def gated(self, at, data) -> None:
        begun.set()
        go_on.wait(SECONDS)
        ungated(self, at, data)

    monkeypatch.setattr(DiskFile, method, gated)
    return begun, go_on


async def test_blocks_can_be_forgotten_while_they_are_read_from_the_disk(tmp_path, monkeypatch, stores):
    begun, go_on = gate(monkeypatch, "read")
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, _b):
        await save_slowly(a, NAMES)
        first = NAMES[:4]
        await a.until(lambda: not a.here & {*first} and a.away >= {*first})
        restored = asyncio.ensure_future(a.restore(first))
        await asyncio.to_thread(begun.wait, SECONDS)
        a.tell(a.options.store, ForgetStored(kind=KIND))
        await a.until(lambda: not (a.here | a.away))
        go_on.set()
        assert await restored == [False] * 4
        async with asyncio.timeout(SECONDS):
            while True:
                found = await a.at_rest()
                if found.unloaded == 4:
                    break
                await asyncio.sleep(0)
        assert (found.blocks, found.loaded, found.disk_blocks) == (0, 0, 0)
        await a.save(NAMES[:1])
        await a.until(lambda: a.here | a.away == {NAMES[0]})
        assert await a.restore(NAMES[:2]) == [True, False]
        assert len(stores) == 2, "the store lives on"


async def test_blocks_that_are_forgotten_while_they_are_written_to_the_disk_leave_nothing(
    tmp_path, monkeypatch, stores
):
    begun, go_on = gate(monkeypatch, "write")
    async with two_hosts(on_disk(tmp_path), memory=MEMORY) as (_, a, _b):
        for name in NAMES[:SLOTS]:
            await a.save([name])
        await asyncio.to_thread(begun.wait, SECONDS)
        a.tell(a.options.store, ForgetStored(kind=KIND))
        await a.until(lambda: not (a.here | a.away))
        go_on.set()
        async with asyncio.timeout(SECONDS):
            while True:
                if not any(store._is_spilling for store in stores):
                    break
                await asyncio.sleep(0)
        assert not any(store._generations for store in stores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disk": "1GiB"}, "there is no disk_path; expected a folder on the store's host"),
        ({"disk": "much", "disk_path": "/tmp"}, "disk: found 'much'"),
        ({"disk": 5, "disk_path": "/tmp"}, "expected 0, or a size such as 100GiB"),
    ],
)
def test_a_disk_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Store.Options(**options)


async def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StartupError, match="no folder on the store's host"):
        async with two_hosts(on_disk(tmp_path / "none")):
            raise AssertionError
