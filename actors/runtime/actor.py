"""The base class of actors: typed handlers, one mailbox, state that only its own handlers touch.

    class Tokenizer(Actor):
        role = TOKENIZER
        class Options(ActorOptions):
            model: str

        @receives
        async def tokenize(self, request: Tokenize) -> Tokenized: ...

Time, random numbers, other actors and threads come through `self`, never from a module, so that a whole
topology can run in a simulation.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import msgspec

from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.clock import Clock
from pageant.actors.runtime.handlers import Handler, build_table, check_role, receives
from pageant.protocol.message import Message, Request
from pageant.protocol.roles import Role
from pageant.protocol.supervision import ActorChanged, Facts

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell
    from pageant.actors.runtime.tracing import Tracer

R = TypeVar("R")
P = ParamSpec("P")

__all__ = ["ASK_TIMEOUT", "Actor", "ActorOptions", "receives"]

ASK_TIMEOUT = 30.0  # seconds; every ask has a deadline


class ActorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of an actor's options: what its entry in a topology may set, validated before it starts."""


class Actor:
    """One member of the cast. Made by its node, which calls `on_start` before the first message.

    Attributes:
        role: the conversations it takes part in; checked when the class is defined.
        features: what it honours beyond the plain, out of its role's features.
        offload_threads: how many functions given to `offload` may run at once.
        heavy: whether it holds so much memory that its next life must not begin before that is given back.
    """

    role: ClassVar[Role | None] = None
    features: frozenset[str] = frozenset()
    offload_threads: int = 1
    heavy: bool = False
    handlers: ClassVar[dict[type[Message], Handler]] = {}

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Without options of its own."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.handlers = build_table(cls)
        if cls.role is not None:
            check_role(cls, cls.role, cls.handlers)
            unknown = set(cls.features) - set(cls.role.features)
            if unknown:
                raise TypeError(
                    f"{cls.__qualname__} declares {', '.join(sorted(unknown))}, which is not for a "
                    f"{cls.role.name} to honour; its features are {', '.join(sorted(cls.role.features))}"
                )

    _cell: Cell

    def __init__(self, options: Any) -> None:
        self.options = options

    # What a subclass may define.

    async def on_start(self) -> None:
        """Before the first message. What it raises is a failed start."""

    def facts(self) -> Facts:
        """Return what this actor found out in `on_start`, for whoever watches it; nothing by default.

        Facts travel in `ActorUp`: a watcher knows them as soon as it knows that the actor is there. An actor whose
        facts change calls `announce`.
        """
        return {}

    async def on_stop(self) -> None:
        """After the last message of an orderly stop; not after a crash."""

    def leave(self) -> object | None:
        """Return what the next actor of this name may begin with, after `on_stop`; nothing by default.

        It is given to that actor only if its life begins in this process, in place of this one.
        """
        return None

    def inherit(self, left: object) -> None:
        """Take over what the former actor of this name left, before `on_start`. By default it is passed over."""

    def loses_process(self, error: BaseException) -> bool:
        """Return whether this process is of no use for a later life of this actor once it died of `error`.

        The process then ends, and its supervisor starts another, a spare one if there is one. That costs seconds where
        the process could have gone on, so the answer is no by default.
        """
        return False

    def on_crash(self, error: BaseException) -> None:
        """After a crash, which is reported next: whoever waits for this actor outside of the runtime is to be told."""

    # What a handler may use.

    @property
    def name(self) -> str:
        """This actor's full name."""
        return self._cell.name

    @property
    def incarnation(self) -> int:
        """Which life of this name it is; issued by the root supervisor, growing."""
        return self._cell.incarnation

    @property
    def sender(self) -> str:
        """Who sent the message that is being handled (valid until the handler first awaits)."""
        return self._cell.sender

    @property
    def sender_incarnation(self) -> int:
        """The sender's incarnation (valid until the handler first awaits)."""
        return self._cell.sender_incarnation

    @property
    def clock(self) -> Clock:
        """The only source of time."""
        return self._cell.node.clock

    @property
    def random(self) -> random.Random:
        """The only source of randomness, seeded by the node."""
        return self._cell.random

    @property
    def tracer(self) -> Tracer:
        """Makes this actor's spans of requests that are traced."""
        return self._cell.tracer

    def tell(self, address: str, message: Message) -> None:
        """Sends and returns at once. What cannot be delivered is counted as a dead letter."""
        self._cell.node.tell(address, message, self._cell)

    def tell_from_thread(self, address: str, message: Message) -> None:
        """`tell`, for use within an offloaded function."""
        self._cell.node.loop.call_soon_threadsafe(self.tell, address, message)

    async def ask(
        self,
        address: str,
        request: Request[R],
        timeout: float = ASK_TIMEOUT,
        *,
        again: bool = False,
        deaths_max: int | None = None,
    ) -> R:
        """Sends a request and waits for its reply, for `timeout` seconds at most.

        An actor that is being restarted is waited for. Cancelling this cancels the handler.

        Args:
            again: the request may be carried out twice: if the actor dies with it, its next life is asked.
            deaths_max: so many times at most, lest it be the request that kills it. None is however often.

        Raises:
            RemoteError: the handler raised.
            PeerGone: the actor died with the request in its hands (with `again`: so often).
            GivenUp: it will not be restarted.
            NoSuchActor: no actor of that name is in the topology.
            DeadlineExceeded: no reply in time.
        """
        reply: R = await self._cell.node.ask(
            address, request, timeout, self._cell, again=again, deaths_max=deaths_max
        )
        return reply

    def stream(
        self, address: str, request: Request[R], timeout: float = ASK_TIMEOUT, credit: int = 64
    ) -> AsyncIterator[R]:
        """Iterates over the replies of a streaming handler; `timeout` bounds the wait for each.

        The producer is at most `credit` items ahead. Leaving the loop cancels the handler (at the latest
        when the iterator is closed).
        """
        return self._cell.node.stream(address, request, timeout, self._cell, credit)

    def announce(self) -> None:
        """Tells whoever watches this actor of its facts as they are now."""
        self.tell(
            SUPERVISOR, ActorChanged(address=self.name, incarnation=self.incarnation, facts=self.facts())
        )

    def watch(self, address: str) -> None:
        """From now on, `ActorUp` and `ActorDown` come for this address; first for those that are up already, or down
        for good."""
        self._cell.node.watch(address, self._cell)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Starts a background task that belongs to this actor: it ends with it, and fails it if it fails."""
        self._cell.spawn(coroutine)

    async def offload(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a blocking function off the event loop. The only way to do so."""
        return await self._cell.offload(partial(function, *args, **kwargs), threads=self.offload_threads)

    async def offload_beside(
        self, lane: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`offload` to another thread, one for each `lane`, for what is not to wait behind the rest."""
        return await self._cell.offload(partial(function, *args, **kwargs), lane)
