"""Functions in threads that outlive their actor: the process ends, for nothing else frees what they hold."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime import cell as cell_module
from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.node import Node
from pageant.protocol.supervision import ActorFailed

SECONDS = 10.0


async def add(node: Node, actor: Actor, name: str = "x"):
    cell = node.add(name, 1, actor)
    await cell.start()
    return cell


class Offloading(Actor):
    """Offloads a function that ends when it is let go, or when its actor crashes where `crashes_let_go`."""

    crashes_let_go = False

    def __init__(self, begun: threading.Event, let_go: threading.Event) -> None:
        super().__init__(self.Options())
        self._begun, self._let_go = begun, let_go

    async def on_start(self) -> None:
        self.spawn(self.offload(self._wait))

    def _wait(self) -> None:
        self._begun.set()
        self._let_go.wait(SECONDS)

    def on_crash(self, error: BaseException) -> None:
        if self.crashes_let_go:
            asyncio.get_running_loop().call_later(0.02, self._let_go.set)


class Told(Actor):
    """Stand-in for the supervisor that keeps the first failure."""

    async def on_start(self) -> None:
        self.failed: asyncio.Future[ActorFailed] = asyncio.get_running_loop().create_future()

    @receives
    def fail(self, event: ActorFailed) -> None:
        self.failed.set_result(event)


@pytest.mark.parametrize("stuck", [True, False])
async def test_a_function_that_outlives_the_stop_of_its_actor_ends_the_process(node, monkeypatch, stuck):
    monkeypatch.setattr(cell_module, "END_SECONDS_MAX", 0.05 if stuck else SECONDS)
    begun, let_go, ended = threading.Event(), threading.Event(), []
    node.on_unusable = lambda: ended.append(True)
    cell = await add(node, Offloading(begun, let_go))
    await asyncio.to_thread(begun.wait)
    if not stuck:
        node.loop.call_later(0.02, let_go.set)
    await cell.stop()
    assert ended == [True] * stuck
    let_go.set()


@pytest.mark.parametrize("stuck", [True, False])
async def test_a_function_that_outlives_the_crash_of_its_actor_ends_the_process_which_is_told(
    node, monkeypatch, stuck
):
    """Functions that wait for others end in `on_crash`: the process can have the next life then."""
    monkeypatch.setattr(cell_module, "RETURN_SECONDS_MAX", 0.05 if stuck else SECONDS)
    monkeypatch.setattr(Offloading, "crashes_let_go", not stuck)
    begun, let_go, ended = threading.Event(), threading.Event(), []
    node.on_unusable = lambda: ended.append(True)
    told = await add(node, Told(Told.Options()), SUPERVISOR)
    cell = await add(node, Offloading(begun, let_go))
    await asyncio.to_thread(begun.wait)
    cell.crash(ValueError("it broke"))
    failed = await asyncio.wait_for(told.actor.failed, SECONDS)
    assert (failed.error, failed.ends_process) == ("ValueError: it broke", stuck)
    assert ended == [True] * stuck
    let_go.set()
