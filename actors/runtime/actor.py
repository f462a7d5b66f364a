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
    """Base of an actor's options: the fields that its entry in a topology may set, validated before it starts."""

    @property
    def num_members(self) -> int:
        """Return how many actors these options make of the entry. Several fall and rise as one."""
        return 1

    @property
    def members_because(self) -> str:
        """Return the options that say so, for error messages, such as `size: 2`."""
        return ""


class Actor:
    """Base class of actors. A node makes the actor and calls `on_start` before the first message.

    Attributes:
        role: the conversations that it takes part in; checked when the class is defined.
        features: the features of its role that it honours.
        offload_threads: how many functions given to `offload` may run at once.
        heavy: the actor holds so much memory that its next life must not begin before that memory is free.
        follower: `module:Class` of the members after the first, where its options make several of it
            (`ActorOptions.num_members`). They take the same options.
    """

    role: ClassVar[Role | None] = None
    features: frozenset[str] = frozenset()
    offload_threads: int = 1
    heavy: bool = False
    follower: ClassVar[str] = ""
    handlers: ClassVar[dict[type[Message], Handler]] = {}

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Default options: none."""

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
        """Prepare for the first message. An exception is a failed start."""

    def facts(self) -> Facts:
        """Return facts that this actor found in `on_start`, for its watchers; none by default.

        Facts travel in `ActorUp`: a watcher knows them as soon as it knows that the actor is up. An actor whose
        facts change calls `announce`.
        """
        return {}

    async def on_stop(self) -> None:
        """Clean up after the last message of an orderly stop. Not called after a crash."""

    def leave(self) -> object | None:
        """Return an object for the next actor of this name, after `on_stop`; None by default.

        The next actor gets it only if its life begins in this process, in place of this one.
        """
        return None

    def inherit(self, left: object) -> None:
        """Take over the object that the former actor of this name left, before `on_start`. Ignored by default."""

    def loses_process(self, error: BaseException) -> bool:
        """Tell whether this process is useless for a later life of this actor after it died of `error`.

        The process then ends, and its supervisor starts another, or uses a standby. That costs seconds where
        the process could have gone on, so the default is False.
        """
        return False

    def on_crash(self, error: BaseException) -> None:
        """Tell waiters outside of the runtime that this actor crashed. Called before the crash is reported."""

    # What a handler may use.

    @property
    def name(self) -> str:
        """Return this actor's full name."""
        return self._cell.name

    @property
    def incarnation(self) -> int:
        """Return the number of this life of the actor's name. The root supervisor issues it, and it only grows."""
        return self._cell.incarnation

    @property
    def is_ending(self) -> bool:
        """Tell whether this life is over, or ends. An offloaded function of minutes looks, from its thread."""
        return self._cell.closed

    @property
    def sender(self) -> str:
        """Return the sender of the message that is being handled. Valid until the handler first awaits."""
        return self._cell.sender

    @property
    def sender_incarnation(self) -> int:
        """Return the sender's incarnation. Valid until the handler first awaits."""
        return self._cell.sender_incarnation

    @property
    def clock(self) -> Clock:
        """Return the only source of time."""
        return self._cell.node.clock

    @property
    def random(self) -> random.Random:
        """Return the only source of randomness, seeded by the node."""
        return self._cell.random

    @property
    def tracer(self) -> Tracer:
        """Return the maker of this actor's spans, for requests that are traced."""
        return self._cell.tracer

    def tell(self, address: str, message: Message) -> None:
        """Send a message and return at once. A message that cannot be delivered is counted as a dead letter."""
        self._cell.node.tell(address, message, self._cell)

    def tell_from_thread(self, address: str, message: Message) -> None:
        """Send a message as `tell` does, from within an offloaded function."""
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
        """Send a request and wait for its reply, for `timeout` seconds at most.

        The call waits for an actor that is being restarted. Cancelling the call cancels the handler.

        Args:
            again: the request may be carried out twice: if the actor dies with it, its next life is asked.
            deaths_max: the most deaths to outlive, in case the request causes them. None sets no bound.

        Raises:
            RemoteError: the handler raised.
            PeerGone: the actor died with the request in its hands (with `again`: `deaths_max` times).
            GivenUp: the actor will not be restarted.
            NoSuchActor: no actor of that name is in the topology.
            DeadlineExceeded: no reply came in time.
        """
        reply: R = await self._cell.node.ask(
            address, request, timeout, self._cell, again=again, deaths_max=deaths_max
        )
        return reply

    def stream(
        self, address: str, request: Request[R], timeout: float = ASK_TIMEOUT, credit: int = 64
    ) -> AsyncIterator[R]:
        """Iterate over the replies of a streaming handler; `timeout` bounds the wait for each, in seconds.

        The producer is at most `credit` items ahead. Leaving the loop cancels the handler, at the latest when
        the iterator is closed.
        """
        return self._cell.node.stream(address, request, timeout, self._cell, credit)

    def announce(self) -> None:
        """Tell this actor's watchers its facts as they are now."""
        self.tell(
            SUPERVISOR, ActorChanged(address=self.name, incarnation=self.incarnation, facts=self.facts())
        )

    def watch(self, address: str) -> None:
        """Subscribe to `ActorUp` and `ActorDown` for an address.

        Actors that are up, or down for good, are reported first.
        """
        self._cell.node.watch(address, self._cell)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a background task of this actor. It ends with the actor, and its failure fails the actor."""
        self._cell.spawn(coroutine)

    async def offload(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a blocking function off the event loop. No other way is allowed."""
        return await self._cell.offload(partial(function, *args, **kwargs), threads=self.offload_threads)

    async def offload_beside(
        self, lane: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function as `offload` does, in a thread of its own for each `lane`, so that it does not wait
        for others.
        """
        return await self._cell.offload(partial(function, *args, **kwargs), lane)
