"""A stage: lives of actors, the messages between them in any order, and their background work."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict, deque
from types import coroutine
from typing import Any, NamedTuple

from pageant.protocol.arrays import freeze
from pageant.protocol.supervision import ActorUp
from tests.actors.scheduler.play.request import Request
from tests.actors.scheduler.play.setting import BLOCKS, EXECUTOR, SCHEDULER, SUPERVISOR, Setting


class Cell:
    """The part of a cell that an actor sees: its name and life, the sender at hand, threads and tasks."""

    def __init__(self, stage: Stage, name: str, incarnation: int) -> None:
        self.node, self.name, self.incarnation = stage, name, incarnation
        self.sender, self.sender_incarnation = "", 0

    async def offload(self, call: Any, lane: str = "", threads: int = 1) -> Any:
        return await suspend(Offloaded(call, (self, lane) if threads == 1 else None))

    def spawn(self, coroutine: Any) -> None:
        self.node.go_on(self, coroutine, None)


class Offloaded(NamedTuple):
    """A call that an actor gave to a thread. Calls of one thread are made in order."""

    call: Any
    thread: tuple[Cell, str] | None


@coroutine
def suspend(call: Any) -> Any:
    """Wait until the stage has made a call; return its result."""
    return (yield call)


def finish(coroutine: Any) -> None:
    """Run a coroutine that waits for nothing but the calls that it offloads."""
    value = None
    try:
        while True:
            value = coroutine.send(value).call()
    except StopIteration:
        return


class Clock:
    """A clock whose time passes, if at all, when somebody looks."""

    def __init__(self, seed: int, ticks: float) -> None:
        self._random, self._ticks, self._now = random.Random(seed), ticks, 0.0

    def now(self) -> float:
        self._now += self._ticks * self._random.random()
        return self._now


class Stage:
    """Lives of actors, and the messages and background work that wait for their turn.

    `watching` and `views` are the nodes' knowledge: which addresses an actor watches, and which life of a peer it
    knows. A channel is FIFO and holds each message with the lives of its sender and of the receiver it is meant for.
    """

    def __init__(self, seed: int, setting: Setting) -> None:
        self.setting = setting
        self.random = random.Random(seed)
        self.clock = Clock(seed, setting.clock_ticks)
        self.lives: Counter[str] = Counter()
        self.cells: dict[str, Cell] = {}
        self.actors: dict[str, Any] = {}
        self.watching: dict[str, set[str]] = defaultdict(set)
        self.views: dict[tuple[str, str], int] = {}
        self.channels: dict[tuple[str, str], deque[tuple[Any, int, int]]] = defaultdict(deque)
        self.work: list[tuple[Cell, Any, Any]] = []  # background tasks, and what they wait for
        self.requests: dict[tuple[str, str], Request] = {}
        self.seen: Counter[str] = Counter()

    @property
    def core(self) -> Any:
        return self.actors[SCHEDULER].core

    @property
    def phase(self) -> str:
        return (
            "assigning"
            if self.core.planner.exchange
            else "computing"
            if self.core.planner.computing
            else "idle"
        )

    @property
    def allocation(self) -> Any:
        actor = self.actors.get(BLOCKS)
        return actor._allocation if actor is not None else None

    def watch(self, address: str, cell: Cell) -> None:
        address = EXECUTOR if address == "executor/*" else address
        if address in self.watching[cell.name]:
            return
        self.watching[cell.name].add(address)
        if address in self.cells:
            self._put(SUPERVISOR, cell.name, ActorUp(address=address, incarnation=self.lives[address]))

    def tell(self, address: str, message: Any, cell: Cell) -> None:
        freeze(message)
        address = EXECUTOR if address == "executor/*" else address
        known = self.views.get((cell.name, address))
        if address not in self.watching[cell.name]:
            known = self.lives[address] if address in self.cells else None
        if known is not None:
            self.channels[(cell.name, address)].append((message, cell.incarnation, known))

    def _put(self, source: str, target: str, message: Any) -> None:
        self.channels[(source, target)].append((message, 0, self.lives[target]))

    def waiting_channels(self) -> list[tuple[str, str]]:
        return [key for key, channel in self.channels.items() if channel and not self._is_early(*key)]

    def _is_early(self, source: str, target: str) -> bool:
        """Tell whether the next message is of a life that its receiver's node has not heard of yet."""
        watched = source in self.watching.get(target, ())
        return watched and self.channels[(source, target)][0][1] > self.views.get((target, source), 0)

    def _next_work(self) -> list[tuple[Cell, Any, Any]]:
        """Return the first waiting call of each thread."""
        found: dict[Any, tuple[Cell, Any, Any]] = {}
        for entry in self.work:
            found.setdefault(entry[2].thread or id(entry), entry)
        return list(found.values())

    def go_on(self, cell: Cell, task: Any, value: Any) -> None:
        """Let a background task go on until it offloads its next call."""
        with contextlib.suppress(StopIteration):
            self.work.append((cell, task, task.send(value)))
