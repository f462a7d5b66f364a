"""A node of this process with the actor on trial, and stand-ins for those whom it talks to."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import TypeVar

from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.node import Node
from pageant.protocol.allocation import Assign, Assigned, PoolReady
from pageant.protocol.guiding import GuidesLost, GuideStep, TokenMasks
from pageant.protocol.message import Message, Request
from pageant.protocol.outputs import Stopped, TokenBatch
from pageant.protocol.serving import OutputBatch
from pageant.protocol.stepping import ExecutorReady, StepPlan, StepResult
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import ActorEntry, ActorFailed, Directory
from pageant.scripts.conformance.rules import BrokenRule

M = TypeVar("M", bound=Message)
R = TypeVar("R")

ANSWER_SECONDS = 10.0


class StandIn(Actor):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(None)
        self.inbox: deque[Message] = deque()
        self.came = asyncio.Event()

    @receives
    def note(
        self,
        message: Assign
        | Assigned
        | PoolReady
        | StepPlan
        | ExecutorReady
        | TokenBatch
        | OutputBatch
        | Stopped
        | Acknowledge
        | Resume
        | StepResult
        | TokenMasks
        | GuidesLost
        | GuideStep
        | ActorFailed,
    ) -> None:
        self.inbox.append(message)
        self.came.set()


class Stage:
    """Hosts actors under their usual names; every message goes through the codec.

    A crash of the actor on trial is a broken rule, with its own error as the cause.
    """

    def __init__(self) -> None:
        self._lives: dict[str, int] = {}
        self._up: set[str] = set()
        self._version = 0

    async def __aenter__(self) -> Stage:
        self.node = Node("conformance", wire_always=True)
        await self.enter(SUPERVISOR)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.node.stop()

    async def enter(self, name: str, actor: Actor | None = None) -> None:
        """A new life of an actor begins; a stand-in's, unless one is given."""
        self._lives[name] = self._lives.get(name, 0) + 1
        await self.node.add(name, self._lives[name], actor or StandIn()).start()
        self._up.add(name)
        self._announce()

    async def leave(self, name: str) -> None:
        """An actor dies."""
        cell = self.node.cells[name]
        await cell.stop()
        self.node.remove(cell)
        self._up.discard(name)
        self._announce()

    def _announce(self) -> None:
        self._version += 1
        entries = tuple(
            ActorEntry(name=name, node=self.node.name, incarnation=life, up=name in self._up)
            for name, life in self._lives.items()
        )
        self.node.update(Directory(version=self._version, nodes=(), actors=entries))

    def tell(self, source: str, target: str, message: Message) -> None:
        """One of the actors here says something to another."""
        self.node.tell(target, message, self._cell(source))

    async def ask(self, target: str, request: Request[R], seconds: float | None = None) -> R:
        """Ask the actor on trial, which has so long to answer (default: `ANSWER_SECONDS`)."""
        answer: R = await self.node.ask(target, request, seconds or ANSWER_SECONDS)
        return answer

    async def expect(self, name: str, kind: type[M], rule: str) -> M:
        """The next message that a stand-in is told, which is to be of that kind.

        Raises:
            BrokenRule: nothing came, or something else.
        """
        stand_in = self._stand_in(name)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while not stand_in.inbox:
                    self._look_for_crashes(rule)
                    stand_in.came.clear()
                    waiting = asyncio.ensure_future(stand_in.came.wait())
                    await asyncio.wait([waiting], timeout=0.2)
                    waiting.cancel()
        except TimeoutError:
            raise BrokenRule(
                rule, f"no {kind.__name__} came for {name} within {ANSWER_SECONDS:g} s"
            ) from None
        message = stand_in.inbox.popleft()
        if not isinstance(message, kind):
            raise BrokenRule(rule, f"{name} was told {message!r}, not a {kind.__name__}")
        return message

    async def quiet(self, name: str, rule: str) -> None:
        """Check that nothing more comes for a stand-in.

        Raises:
            BrokenRule: something does.
        """
        await self.settle()
        inbox = self._stand_in(name).inbox
        if inbox:
            raise BrokenRule(rule, f"{name} was told {inbox[0]!r}, which nothing called for")
        self._look_for_crashes(rule)

    async def settle(self) -> None:
        """Gives everybody their turn, until no mailbox holds anything."""
        calm = 0
        while calm < 3:
            await asyncio.sleep(0)
            calm = 0 if any(len(cell.mailbox) for cell in self.node.cells.values()) else calm + 1

    def take(self, name: str) -> list[Message]:
        """Take everything that a stand-in was told since."""
        inbox = self._stand_in(name).inbox
        messages = list(inbox)
        inbox.clear()
        return messages

    def _look_for_crashes(self, rule: str) -> None:
        for message in self._stand_in(SUPERVISOR).inbox:
            if isinstance(message, ActorFailed):
                raise BrokenRule(rule, f"{message.name} crashed: {message.error}\n{message.traceback}")

    def _stand_in(self, name: str) -> StandIn:
        actor = self._cell(name).actor
        assert isinstance(actor, StandIn), f"{name} is no stand-in"
        return actor

    def _cell(self, name: str) -> Cell:
        return self.node.cells[name]
