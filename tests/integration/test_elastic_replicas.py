"""Replicas come and go under load: no request is refused, lost or changed, and nothing is left of those that went."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import BadRequest, RemoteError
from pageant.scripts.chaos.load import Load, mixed_requests, undisturbed

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 160, "max_num_seqs": 24, "seed": 5}
ASKED = mixed_requests(10, 60)
CYCLES = 3


@pytest.fixture(scope="module")
def engine(checkpoint) -> Iterator[pageant.Engine]:
    engine = pageant.Engine(checkpoint.path, replicas=2, placement="one", routing="least", **SETTINGS)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


async def names(engine: pageant.Engine) -> list[str]:
    return [one.name for one in await engine.replicas.ls()]


async def test_cycles_of_adding_draining_and_removing_cost_nobody_a_token(engine):
    right = await undisturbed(engine, ASKED)
    load = Load(engine, ASKED, right)
    load.begin()
    for cycle in range(CYCLES):
        added = await engine.replicas.add()
        assert added == "replica-2" and len(await names(engine)) == 3
        await engine.replicas.drain("replica-0", 0.0 if cycle % 2 else 30.0)
        assert await engine.replicas.add() == "replica-0", "the lowest number that is free"
        await engine.replicas.remove("replica-2")
        assert await names(engine) == ["replica-0", "replica-1"]
    await load.end()
    assert (load.lost, load.changed) == ([], []) and load.requests >= len(ASKED)
    assert engine._session.frontend._moving.num_moved >= 1


async def test_a_name_that_comes_again_has_a_later_incarnation_and_nothing_else_of_before(engine):
    node = engine._session._cluster.node
    before = node.entry("replica-1/scheduler").incarnation
    await engine.replicas.remove("replica-1")
    assert not [name for name in node.directory() if name.startswith("replica-1/")]
    assert not [name for name in node.cells if name.startswith("replica-1/")]
    assert [*engine._session.frontend._peers[""].places] == ["replica-0/"]
    assert await engine.replicas.add("replica-1") == "replica-1"
    assert await engine.replicas.add("replica-1") == "replica-1", "it is there already"
    assert node.entry("replica-1/scheduler").incarnation > before
    states = {one.name: (one.state, one.num_open) for one in await engine.replicas.ls()}
    assert states == {"replica-0": ("up", 0), "replica-1": ("up", 0)}


async def test_a_drain_with_patience_lets_requests_end_where_they_are(engine):
    moved = engine._session.frontend._moving.num_moved
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    going = [asyncio.create_task(engine.complete([9, 8, number], params)) for number in range(10, 16)]
    await asyncio.sleep(0)
    await engine.replicas.drain("replica-1", 100.0)
    assert engine._session.frontend._moving.num_moved == moved
    assert all(one.finished for one in await asyncio.gather(*going))
    await engine.replicas.add()


@pytest.mark.parametrize(
    ("name", "keywords", "text"),
    [
        ("replica-7", {}, "name is 'replica-7'; did you mean 'replica-"),
        ("", {}, "name is ''"),
        ("replica-0", {"patience": -1}, "patience is -1"),
        ("replica-0", {"patience": float("nan")}, "patience is nan"),
    ],
)
async def test_what_cannot_be_drained_is_refused_by_name(engine, name, keywords, text):
    with pytest.raises((BadRequest, RemoteError), match=text):
        await engine.replicas.drain(name, **keywords)


async def test_what_is_no_replicas_name_is_not_added(engine):
    with pytest.raises((BadRequest, RemoteError), match="name is 'second'; expected a replica's"):
        await engine.replicas.add("second")


async def test_the_last_replica_and_one_that_is_drained_already_stay(engine):
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    long = [asyncio.create_task(engine.complete([7, number], params)) for number in range(10, 30)]
    while not all([one.num_open for one in await engine.replicas.ls()]):
        pass
    draining = asyncio.create_task(engine.replicas.drain("replica-0", 100.0))
    while (await engine.replicas.ls())[0].state != "draining":
        pass
    with pytest.raises((BadRequest, RemoteError), match="replica-0 is being drained already"):
        await engine.replicas.drain("replica-0")
    for leave in (engine.replicas.drain, engine.replicas.remove):
        with pytest.raises((BadRequest, RemoteError), match="replica-1 is the last replica"):
            await leave("replica-1")
    await draining
    assert all(one.finished for one in await asyncio.gather(*long))
    assert await engine.replicas.add() == "replica-0"


async def test_requests_wait_while_there_is_no_replica_at_all(engine):
    await engine.replicas.remove("replica-0")
    await engine.replicas.remove("replica-1", force=True)
    assert await names(engine) == []
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    waiting = asyncio.create_task(engine.complete([5, 6, 7], params))
    await engine.replicas.add()
    await engine.replicas.add()
    assert (await waiting).finished


async def test_a_topology_without_replicas_says_how_to_have_some(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
        for operation in (engine.replicas.add(), engine.replicas.ls(), engine.replicas.drain("replica-0")):
            with pytest.raises((BadRequest, RemoteError), match="start it with replicas: 2"):
                await operation
