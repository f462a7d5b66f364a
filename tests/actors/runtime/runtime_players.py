"""Actors and messages for the runtime's tests; node processes import them by this module's name."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.cluster import Cluster
from pageant.protocol.arrays import Int32Vector, int32
from pageant.protocol.message import Message, Request
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tracing import Span, Spans


class Pong(Message, frozen=True, kw_only=True):
    value: int = 0
    text: str = ""


class Ping(Request[Pong], frozen=True, kw_only=True):
    value: int = 0


class Quiet(Request[Pong], frozen=True, kw_only=True):
    """Answered with nothing."""


class Fail(Request[Pong], frozen=True, kw_only=True):
    text: str = ""


class Ids(Message, frozen=True, kw_only=True):
    ids: Int32Vector
    received_writeable: bool


class Reverse(Request[Ids], frozen=True, kw_only=True):
    ids: Int32Vector


class Note(Message, frozen=True, kw_only=True):
    text: str


class Crash(Message, frozen=True, kw_only=True):
    how: str = "handler"


class Hold(Request[Pong], frozen=True, kw_only=True):
    name: str


class HoldBeside(Request[Pong], frozen=True, kw_only=True):
    name: str


class CountTo(Request[Pong], frozen=True, kw_only=True):
    n: int
    fail_at: int = -1


class CountInOrder(Request[Pong], frozen=True, kw_only=True):
    n: int


class Log(Message, frozen=True, kw_only=True):
    events: tuple[str, ...]
    incarnation: int


class GetLog(Request[Log], frozen=True, kw_only=True):
    """Question for what happened so far."""


class Until(Request[Log], frozen=True, kw_only=True):
    """Answered once that has happened."""

    event: str


class WhereAmI(Request[Pong], frozen=True, kw_only=True):
    """The pid, and the thread that offloaded work runs on."""


class Unheard(Request[Pong], frozen=True, kw_only=True):
    """Message that nobody takes."""


class Echo(Actor):
    """Does all that an actor can do, on demand."""

    class Options(ActorOptions, frozen=True, kw_only=True):
        capacity: int = 65_536
        width: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
        ratio: float = 0.5

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.log: list[str] = []
        self.changed = asyncio.Condition()

    async def on_start(self) -> None:
        self._cell.mailbox.capacity = self.options.capacity

    async def record(self, event: str) -> None:
        async with self.changed:
            self.log.append(event)
            self.changed.notify_all()

    @receives
    def ping(self, request: Ping) -> Pong:
        return Pong(value=request.value, text=self.sender)

    @receives
    def quiet(self, request: Quiet) -> None: ...

    @receives
    def fail(self, request: Fail) -> Pong:
        raise LookupError(request.text)

    @receives
    def reverse(self, request: Reverse) -> Ids:
        return Ids(ids=int32(request.ids[::-1]), received_writeable=request.ids.flags.writeable)

    @receives
    async def note(self, message: Note) -> None:
        await self.record(message.text)

    @receives
    def crash(self, message: Crash) -> None:
        match message.how:
            case "handler":
                raise ValueError("told to crash")
            case "spawn":
                self.spawn(self._fail_soon())
            case "fault":
                faulthandler._sigsegv()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    async def _fail_soon(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("a background task failed")

    async def hold_on(self, name: str) -> Pong:
        await self.record(f"began {name}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append(f"cancelled {name}")
            self.spawn(self.record(f"cancellation of {name}"))
            raise
        return Pong()

    @receives
    async def hold(self, request: Hold) -> Pong:
        return await self.hold_on(request.name)

    @receives(concurrent=True)
    async def hold_beside(self, request: HoldBeside) -> Pong:
        return await self.hold_on(request.name)

    @receives(concurrent=True)
    async def count(self, request: CountTo) -> AsyncIterator[Pong]:
        try:
            for value in range(request.n):
                if value == request.fail_at:
                    raise LookupError(f"no {value}")
                self.log.append("produced")
                yield Pong(value=value)
        finally:
            self.spawn(self.record("count ended"))

    @receives
    async def count_in_order(self, request: CountInOrder) -> AsyncIterator[Pong]:
        for value in range(request.n):
            yield Pong(value=value)

    @receives(concurrent=True)
    def get_log(self, request: GetLog) -> Log:
        return Log(events=tuple(self.log), incarnation=self.incarnation)

    @receives(concurrent=True)
    async def until(self, request: Until) -> Log:
        async with self.changed:
            await self.changed.wait_for(lambda: request.event in self.log)
        return Log(events=tuple(self.log), incarnation=self.incarnation)

    @receives
    async def where_am_i(self, request: WhereAmI) -> Pong:
        name = await self.offload(lambda: threading.current_thread().name)
        return Pong(value=os.getpid(), text=name)


class Watcher(Echo):
    """Records who came and went."""

    class Options(Echo.Options, frozen=True, kw_only=True):
        watched: str = "echo"

    async def on_start(self) -> None:
        self.watch(self.options.watched)

    @receives
    async def up(self, event: ActorUp) -> None:
        await self.record(f"up {event.address}#{event.incarnation}")

    @receives
    async def down(self, event: ActorDown) -> None:
        await self.record(f"down {event.address}#{event.incarnation}{' for good' if event.final else ''}")


class Told(Message, frozen=True, kw_only=True):
    spans: tuple[Span, ...]


class GetTold(Request[Told], frozen=True, kw_only=True):
    """Answered once there are that many."""

    count: int


class Relay(Request[Pong], frozen=True, kw_only=True):
    """Asks `echo`, beside whatever else it does."""

    value: int


class Listener(Actor):
    """An observer that keeps the spans that it is told of; and someone who asks."""

    def __init__(self, options) -> None:
        super().__init__(options)
        self.told: list[Span] = []
        self.came = asyncio.Event()
        self.echo_is_up = asyncio.Event()

    async def on_start(self) -> None:
        self.watch("echo")

    @receives
    def up(self, event: ActorUp) -> None:
        self.echo_is_up.set()

    @receives
    def down(self, event: ActorDown) -> None:
        self.echo_is_up.clear()

    @receives
    def spans(self, message: Spans) -> None:
        self.told += message.spans
        self.came.set()

    @receives(concurrent=True)
    async def get(self, request: GetTold) -> Told:
        while len(self.told) < request.count:
            self.came.clear()
            await self.came.wait()
        return Told(spans=tuple(self.told))

    @receives(concurrent=True)
    async def relay(self, request: Relay) -> Pong:
        await self.echo_is_up.wait()
        return await self.ask("echo", Ping(value=request.value))


class Talker(Echo):
    """Says all the time which life this is."""

    async def on_start(self) -> None:
        self.spawn(self._talk())

    async def _talk(self) -> None:
        while True:
            self.tell("watcher", Note(text=f"life {self.incarnation}"))
            await asyncio.sleep(0.02)


class Stillborn(Actor):
    """Never starts."""

    async def on_start(self) -> None:
        self._inner_workings()

    def _inner_workings(self) -> None:
        raise RuntimeError("the sprocket is missing")


class StillbornProcess(Actor):
    """Takes its process along while it starts, as often as its file says."""

    class Options(ActorOptions, frozen=True, kw_only=True):
        times_left: str

    async def on_start(self) -> None:
        await self.offload(self._die_if_due)

    def _die_if_due(self) -> None:
        file = Path(self.options.times_left)
        left = int(file.read_text())
        if left:
            file.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)

    @receives
    def ping(self, request: Ping) -> Pong:
        return Pong(value=request.value)


class Stuck(Actor):
    """Has a thread that never ends."""

    async def on_start(self) -> None:
        self.spawn(self.offload(threading.Event().wait))


class Slow(Actor):
    """Is still starting when it is stopped."""

    async def on_start(self) -> None:
        await asyncio.Event().wait()


def pid_of(cluster: Cluster, node: str) -> int:
    """The process in which a node lives now."""
    return next(entry.pid for entry in cluster.supervision.directory().nodes if entry.name == node)


class Heavy(Echo):
    """Tells how many lives of it there were when this one began."""

    heavy = True
    lives: ClassVar[weakref.WeakSet[Heavy]] = weakref.WeakSet()

    def __init__(self, options) -> None:
        super().__init__(options)
        self.lives.add(self)
        self.num_lives = len(self.lives)

    @receives
    def ping(self, request: Ping) -> Pong:
        return Pong(value=self.num_lives)


class Heir(Echo):
    """Tells how many lives before it left something, one to the next."""

    def __init__(self, options) -> None:
        super().__init__(options)
        self.generations = 0

    def inherit(self, left: object) -> None:
        assert isinstance(left, int)
        self.generations = left

    def leave(self) -> object:
        return self.generations + 1

    @receives
    def ping(self, request: Ping) -> Pong:
        return Pong(value=self.generations)
