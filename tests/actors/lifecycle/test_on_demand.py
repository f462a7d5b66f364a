"""Loading on demand: the order of models that are wanted, and the choice of one that gives way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from pageant.actors.lifecycle import on_demand
from pageant.actors.lifecycle.on_demand import OnDemand
from pageant.protocol.errors import GivenUp
from pageant.protocol.lifecycle import PauseScheduling, SchedulingPaused
from pageant.protocol.scheduling import SchedulerStatistics


class Model:
    """Stands for the actors of a model: whether it is loaded, how many requests are open, and what was done to it."""

    def __init__(self, name, log):
        self.replica = self.name = name
        self.log = log
        self.changing = asyncio.Lock()
        self.loaded, self.open, self.idle, self.paused, self.fails = False, 0, 0.0, None, None

    async def executor(self):
        return SimpleNamespace(sleeping=None if self.loaded else SimpleNamespace(woken=()))

    async def entry(self, role):
        return SimpleNamespace(final=False)

    async def ask(self, role, request):
        if self.fails == "scheduler":
            raise GivenUp("it is no more")
        if isinstance(request, PauseScheduling):
            assert request.if_idle
            return SchedulingPaused(done=not self.open, num_open=self.open)
        return SchedulerStatistics(num_waiting=0, num_running=self.open, counters={}, idle_seconds=self.idle)


class Still:
    """Stands for a pause: with `wait`, requests end."""

    def __init__(self, model, mode, release=False):
        self.model, self.mode = model, mode

    async def __aenter__(self):
        self.model.log.append((self.mode, self.model.name))
        self.model.open = 0

    async def __aexit__(self, *_):
        pass


@pytest.fixture
def scene(monkeypatch):
    async def fall_asleep(model, level):
        assert level == 2
        model.loaded = False
        model.log.append(("unloaded", model.name))

    async def wake(model, parts):
        if model.fails == "executor":
            raise GivenUp("it cannot")
        model.loaded = True
        model.log.append(("loaded", model.name))

    async def paused(model):
        return model.paused

    async def teach(model):
        pass

    monkeypatch.setattr(on_demand, "still", Still)
    monkeypatch.setattr(on_demand, "fall_asleep", fall_asleep)
    monkeypatch.setattr(on_demand, "wake", wake)
    monkeypatch.setattr(on_demand, "paused", paused)
    monkeypatch.setattr(on_demand, "LOOK_SECONDS", 0.0)
    scene = SimpleNamespace(log=[], now=100.0)
    scene.models = {name: Model(name, scene.log) for name in "abc"}

    def loader(most):
        return OnDemand(
            tuple(scene.models.values()),
            most=most,
            level=2,
            min_loaded_seconds=10.0,
            now=lambda: scene.now,
            teach=teach,
        )

    scene.loader = loader
    return scene


async def test_the_idle_model_that_was_used_least_recently_gives_way(scene):
    a, b, c = scene.models.values()
    loader = scene.loader(2)
    await loader.load(a)
    await loader.load(b)
    await loader.load(b)
    a.idle, b.idle = 1.0, 2.0
    await loader.load(c)
    assert scene.log == [("loaded", "a"), ("loaded", "b"), ("keep", "b"), ("unloaded", "b"), ("loaded", "c")]


async def test_an_idle_model_gives_way_before_a_busy_one_whose_turn_is_over(scene):
    a, b, c = scene.models.values()
    loader = scene.loader(2)
    await loader.load(a)
    await loader.load(b)
    scene.now += 60
    a.open = 1
    await loader.load(c)
    assert a.loaded and not b.loaded


async def until_blocked():
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_busy_model_keeps_its_place_for_its_time_and_ends_what_it_has(scene):
    a, b, _ = scene.models.values()
    loader = scene.loader(1)
    await loader.load(a)
    a.open = 3
    scene.now += 9.9
    wanted = asyncio.create_task(loader.load(b))
    await until_blocked()
    assert not wanted.done() and a.loaded
    scene.now += 0.2
    await wanted
    assert scene.log[1:] == [("wait", "a"), ("unloaded", "a"), ("loaded", "b")]


async def test_a_busy_model_gives_way_sooner_when_it_is_idle(scene):
    a, b, _ = scene.models.values()
    loader = scene.loader(1)
    await loader.load(a)
    a.open = 1
    wanted = asyncio.create_task(loader.load(b))
    await until_blocked()
    a.open = 0
    await wanted
    assert scene.log[1:] == [("keep", "a"), ("unloaded", "a"), ("loaded", "b")]


async def test_a_paused_model_gives_way_when_it_has_no_requests(scene):
    a, b, _ = scene.models.values()
    loader = scene.loader(1)
    await loader.load(a)
    a.open, a.paused = 1, "keep"
    scene.now += 60
    wanted = asyncio.create_task(loader.load(b))
    await until_blocked()
    assert not wanted.done() and a.loaded
    a.open = 0
    await wanted
    assert b.loaded


async def test_models_are_loaded_in_the_order_in_which_they_were_wanted(scene):
    a, b, c = scene.models.values()
    loader = scene.loader(1)
    await loader.load(a)
    await asyncio.gather(loader.load(c), loader.load(b), loader.load(c))
    assert [entry for entry in scene.log if entry[0] == "loaded"] == [
        ("loaded", "a"),
        ("loaded", "c"),
        ("loaded", "b"),
        ("loaded", "c"),
    ], "the second that wanted c came after b"


async def test_what_cannot_be_loaded_is_told_to_who_wanted_it_and_stops_nobody(scene):
    a, b, c = scene.models.values()
    loader = scene.loader(1)
    a.fails = "executor"
    found = await asyncio.gather(loader.load(a), loader.load(b), return_exceptions=True)
    assert isinstance(found[0], GivenUp) and found[1] is None and b.loaded
    b.open, b.fails = 1, "scheduler"
    await loader.load(c)
    assert c.loaded and not b.loaded, "nobody plans for a model whose scheduler is gone for good"
