"""A node: one event loop, any number of actors, and links to other nodes.

A node learns from the root supervisor's `Directory` which actor lives where, and resolves names with it. Within
the node an actor gets the message object itself. `wire_always` sends every message through the codec even here,
so that tests can show both ways to be the same. Messages to other nodes go through the `Link` that the node
process was given (`transport`); without one they are dead letters.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from pageant.actors.runtime.actor import Actor
from pageant.actors.runtime.address import AGENT, SUPERVISOR
from pageant.actors.runtime.asks import Asks
from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.clock import Clock
from pageant.actors.runtime.mailbox import Envelope
from pageant.actors.runtime.names import Names
from pageant.actors.runtime.platform import Machine, Platform
from pageant.actors.runtime.remote import Remote
from pageant.actors.runtime.replies import Answer, Items, Reply
from pageant.actors.runtime.tap import Tap
from pageant.actors.runtime.tracing import CURRENT
from pageant.actors.runtime.traffic import resident_bytes
from pageant.actors.runtime.watchers import Watchers
from pageant.actors.runtime.wire import Wire
from pageant.protocol.arrays import freeze
from pageant.protocol.errors import Overloaded
from pageant.protocol.failure import printable
from pageant.protocol.message import Message
from pageant.protocol.supervision import (
    REMOVED,
    ActorEntry,
    ActorFailed,
    Directory,
    NodeStatistics,
)

log = logging.getLogger("pageant.node")

FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
"""A line of a traceback: the file, the line and the function."""


class Node:
    """Hosts actors on the running event loop. Everything here belongs to that loop's thread.

    Args:
        name: unique in the topology.
        incarnation: the number of this life of the name.
        seed: seeds the actors' random generators.
        wire_always: encode and decode every message, also between actors of this node.
        platform: the source of time and threads.
    """

    def __init__(
        self,
        name: str,
        *,
        incarnation: int = 1,
        seed: int = 0,
        wire_always: bool = False,
        platform: Platform | None = None,
    ) -> None:
        self.name, self.incarnation, self.seed = name, incarnation, seed
        self.wire_always = wire_always
        self.loop = asyncio.get_running_loop()
        self.platform: Platform = platform or Machine()
        self.clock: Clock = self.platform.clock
        self.random = random.Random(f"{seed}/{name}")
        # Actors of this node, by full name.
        self.cells: dict[str, Cell] = {}
        self.wire = Wire()
        # Conversations with actors on other nodes.
        self.remote = Remote(self)
        # Messages that were not delivered, by reason.
        self.dead_letters: Counter[str] = Counter()
        # The latest directory, and the actors that addresses mean by it.
        self.names = Names(name, self.cells, lambda: self.remote.root)
        # Cells that are told of other actors' lives.
        self._watchers = Watchers()
        # Conversations of this node's actors that end with an answer.
        self._asks = Asks(name, self.clock, self.names, self._send_request)
        # Tasks of the node itself.
        self._kept: set[asyncio.Task[Any]] = set()
        # Each actor's last error, by its name.
        self._crashes: dict[str, str] = {}
        # Messages that were delivered within this node.
        self.delivered = 0
        # Recordings of this node's messages.
        self.taps: list[Tap] = []
        # The process is about to end and starts no actor any more.
        self.is_unusable = False
        # Ends the process after an actor's death made it useless for a later life of that actor.
        self.on_unusable: Callable[[], None] | None = None
        # Ends the process after its agent or supervisor crashed.
        self.on_agent_crash: Callable[[str], None] | None = None

    # Actors of this node.

    def add(self, name: str, incarnation: int, actor: Actor) -> Cell:
        """Host an actor. It takes messages once its cell is started."""
        assert name not in self.cells, f"{name} lives on {self.name} already"
        self.cells[name] = cell = Cell(self, name, incarnation, actor)
        self.names.forget_routes()
        return cell

    def remove(self, cell: Cell) -> None:
        """Forget an actor that ended."""
        if self.cells.get(cell.name) is cell:
            del self.cells[cell.name]
        self._watchers.remove(cell)
        self.names.forget_routes()

    def actor_crashed(self, cell: Cell, error: str, trace: str, *, ends_process: bool = False) -> None:
        """Report a death to the root supervisor; `ends_process` is as in `ActorFailed`."""
        self.remove(cell)
        again = self._crashes.get(cell.name) == error
        self._crashes[cell.name] = error
        place = FRAME.findall(trace)[-1:]
        where = f" ({place[0][0]}:{place[0][1]}, in {place[0][2]})" if place else ""
        # The same again, after a restart, is no news: the supervisor says when it gives up.
        log.log(
            logging.INFO if again else logging.ERROR,
            *("%s#%d crashed: %s%s", cell.name, cell.incarnation, error, where),
        )
        if cell.name in (SUPERVISOR, AGENT + self.name):
            log.critical("%s cannot go on without it\n%s", self.name, trace)
            if self.on_agent_crash is not None:
                self.on_agent_crash(error)
            return
        failed = ActorFailed(
            name=cell.name,
            incarnation=cell.incarnation,
            error=printable(error),
            traceback=printable(trace),
            started=True,
            ends_process=ends_process,
        )
        self.tell(SUPERVISOR, failed)

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a task of the node itself."""
        task = self.loop.create_task(coroutine)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def stop(self, order: Sequence[str] = ()) -> None:
        """Stop every actor: those in `order` first, in that order, then the rest, latest first."""
        names = [name for name in order if name in self.cells]
        names += [name for name in reversed(list(self.cells)) if name not in names]
        for name in names:
            cell = self.cells.get(name)
            if cell is not None:
                await cell.stop()
                self.remove(cell)
        # Crashes may still be on their way to the supervisor.
        if self._kept:
            await asyncio.wait(list(self._kept))
        self.names.close()
        self.remote.close()

    # Names.

    def update(self, directory: Directory) -> None:
        """Apply a new directory, and tell watchers of the changes."""
        if directory.version <= self.names.version or self.names.closed:
            return
        nodes = {(entry.name, entry.incarnation) for entry in directory.nodes}
        for name, incarnation in self.names.nodes - nodes:
            self.remote.node_gone(name, incarnation)
        self.names.nodes = nodes
        before = self.names.update(directory)
        for name, entry in self.names.entries.items():
            self._notice(before.get(name), entry)
        for name, entry in before.items():
            if name not in self.names.entries:
                self._notice_removal(entry)
        self.remote.directory_changed()
        self.names.wake()

    def _notice(self, old: ActorEntry | None, new: ActorEntry) -> None:
        """Report the end of the old incarnation, then the beginning of the new one."""
        was_up = old is not None and old.up
        if old is not None and was_up and (not new.up or new.incarnation != old.incarnation):
            self.remote.peer_gone(old)
            self._watchers.life_ended(old, new)
        elif old is not None and not was_up and new.final and not old.final:
            self._watchers.life_ended(new, new)
        if new.up and (not was_up or old is None or old.incarnation != new.incarnation):
            self._watchers.life_began(new)
        elif new.up and old is not None and old.facts != new.facts:
            self._watchers.facts_changed(new)

    def _notice_removal(self, old: ActorEntry) -> None:
        """Report the end of an actor that left the topology."""
        if old.up:
            self.remote.peer_gone(old)
        gone = msgspec.structs.replace(old, up=False, final=True, reason=REMOVED)
        self._watchers.life_ended(old, gone)
        self._crashes.pop(old.name, None)

    def watch(self, address: str, cell: Cell) -> None:
        """Subscribe a cell to an address. Actors that are up, or down for good, are reported first."""
        self._watchers.add(address, cell, self.names.entries.values())

    def has_node(self, name: str) -> bool:
        """Tell whether a node is up, as far as this one knows."""
        return self.names.has_node(name)

    # Sending.

    def tell(self, address: str, message: Message, sender: Cell | None = None) -> None:
        """Send a message without an answer to every actor that the address means."""
        freeze(message)
        replica = sender.replica if sender is not None else ""
        route = self.names.all_of(address, replica)
        if not route:
            why = "actor down" if self.names.may_start(address, replica) else "no such actor"
            self.dead_letter(why, address, message)
        for place in route:
            if isinstance(place, Cell):
                self._deliver(place, message, sender, None)
            else:
                self.remote.tell(place, message, sender)

    def _deliver(self, cell: Cell, message: Message, sender: Cell | None, reply: Reply | None) -> Envelope:
        if self.wire_always:
            message = self.wire.round_trip(message)
            reply = self.wire.wrap(reply)
        trace = CURRENT.get() if reply is not None else None
        if sender is not None:
            envelope = Envelope(message, sender.name, sender.incarnation, reply, trace)
        else:
            envelope = Envelope(message, AGENT + self.name, 0, reply, trace)
        self.delivered += 1
        cell.deliver(envelope)
        return envelope

    async def ask(
        self,
        address: str,
        request: Message,
        timeout: float,
        sender: Cell | None = None,
        *,
        again: bool = False,
        deaths_max: int | None = None,
    ) -> Any:
        """Send a request and wait for its reply, for `timeout` seconds at most. See `Actor.ask`."""
        return await self._asks.ask(address, request, timeout, sender, again=again, deaths_max=deaths_max)

    def stream(
        self, address: str, request: Message, timeout: float, sender: Cell | None = None, credit: int = 64
    ) -> AsyncIterator[Any]:
        """Iterate over the replies of a stream; `timeout` bounds the wait for each, in seconds. See
        `Actor.stream`.
        """
        return self._asks.stream(address, request, timeout, sender, credit)

    def _send_request(
        self,
        place: Cell | ActorEntry,
        request: Message,
        sender: Cell | None,
        reply: Answer | Items,
        deadline: float | None,
    ) -> Callable[[], None]:
        """Send an ask; return the function that cancels it."""
        freeze(request)
        if not isinstance(place, Cell):
            return self.remote.ask(place, request, sender, reply, deadline)
        envelope = self._deliver(place, request, sender, reply)
        return lambda: place.cancel(envelope)

    def tapped(self, cell: Cell, envelope: Envelope) -> None:
        """Record a message that an actor received. Messages of the runtime's own actors are not recorded."""
        if cell.name != SUPERVISOR and not cell.name.startswith(AGENT):
            for tap in self.taps:
                tap.take(cell, envelope)

    # Counters.

    def dead_letter(self, why: str, address: str, message: Any) -> None:
        """Count a message that was not delivered."""
        self.dead_letters[why] += 1
        log.debug("dead letter (%s): %s for %s", why, type(message).__name__, address)

    def mailbox_full(self, cell: Cell, envelope: Envelope) -> None:
        """Refuse a message to a full mailbox: an ask gets `Overloaded`, a tell is a dead letter."""
        if envelope.reply is not None:
            envelope.reply.fail(Overloaded(f"{cell.name} has {cell.mailbox.capacity} messages waiting"))
            return
        if not self.dead_letters["mailbox full"]:
            log.warning("the mailbox of %s is full; messages for it are dropped and counted", cell.name)
        self.dead_letter("mailbox full", cell.name, envelope.message)

    def statistics(self) -> NodeStatistics:
        """Return all counters of this node and of its actors."""
        user, system, *_ = os.times()
        return NodeStatistics(
            node=self.name,
            pid=os.getpid(),
            delivered=self.delivered,
            sent=self.remote.sent,
            received=self.remote.received,
            refused=self.remote.refused,
            dead_letters=dict(self.dead_letters),
            actors={name: cell.statistics() for name, cell in self.cells.items()},
            cpu_seconds=user + system,
            resident_bytes=resident_bytes(),
            traffic=self.remote.traffic.statistics(),
        )

    def directory(self) -> dict[str, ActorEntry]:
        """Return the actors of the topology, by name, as this node knows them."""
        return dict(self.names.entries)

    def entry(self, name: str) -> ActorEntry | None:
        """Return this node's entry of an actor, or None."""
        return self.names.entries.get(name)
