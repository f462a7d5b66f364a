"""A node: one event loop, any number of actors, and links to other nodes.

A node learns from the root supervisor's `Directory` which actor lives where, and resolves names with it. Within
the node an actor gets the message object itself. `wire_always` sends every message through the codec even here,
so that tests can show both ways to be the same. Messages to other nodes go through the `Link` that the node
process was given (`transport`); without one they are dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from pageant.actors.runtime.actor import Actor
from pageant.actors.runtime.address import AGENT, ALL, SUPERVISOR, candidates, matches, members
from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.clock import Clock
from pageant.actors.runtime.mailbox import Envelope
from pageant.actors.runtime.platform import Machine, Platform
from pageant.actors.runtime.remote import Remote
from pageant.actors.runtime.replies import Answer, Items, Reply
from pageant.actors.runtime.tap import Tap
from pageant.actors.runtime.tracing import CURRENT
from pageant.actors.runtime.traffic import resident_bytes
from pageant.actors.runtime.wire import Wire
from pageant.protocol.arrays import freeze
from pageant.protocol.checks import expected
from pageant.protocol.errors import DeadlineExceeded, GivenUp, NoSuchActor, Overloaded, PeerGone
from pageant.protocol.failure import printable
from pageant.protocol.message import Message
from pageant.protocol.supervision import (
    REMOVED,
    SWAPPED,
    ActorChanged,
    ActorDown,
    ActorEntry,
    ActorFailed,
    ActorUp,
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
        # The latest directory's actors, by name.
        self._directory: dict[str, ActorEntry] = {}
        # Names and incarnations of the nodes that are up.
        self._nodes: set[tuple[str, int]] = set()
        # The version of the latest directory; older ones are ignored.
        self._version = 0
        # Resolved addresses, by address and replica of the sender. Cleared at every change.
        self._routes: dict[tuple[str, str], list[Cell | ActorEntry]] = {}
        # Counts asks of each group, which are served in turn.
        self._turns: Counter[str] = Counter()
        # Watching cells, by watched address and the watcher's name.
        self._watchers: dict[tuple[str, str], Cell] = {}
        # Resolved and replaced at every new directory.
        self._changed: asyncio.Future[None] = self.loop.create_future()
        # Tasks of the node itself.
        self._kept: set[asyncio.Task[Any]] = set()
        # Each actor's last error, by its name.
        self._crashes: dict[str, str] = {}
        # Messages that were delivered within this node.
        self.delivered = 0
        # Recordings of this node's messages.
        self.taps: list[Tap] = []
        self.stopped = False
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
        self._routes.clear()
        return cell

    def remove(self, cell: Cell) -> None:
        """Forget an actor that ended."""
        if self.cells.get(cell.name) is cell:
            del self.cells[cell.name]
        self._watchers = {key: watcher for key, watcher in self._watchers.items() if watcher is not cell}
        self._routes.clear()

    def actor_crashed(self, cell: Cell, error: str, trace: str) -> None:
        """Report a death to the root supervisor."""
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
        self.stopped = True
        if not self._changed.done():
            self._changed.set_result(None)
        self.remote.close()

    # Names.

    def update(self, directory: Directory) -> None:
        """Apply a new directory, and tell watchers of the changes."""
        if directory.version <= self._version or self.stopped:
            return
        nodes = {(entry.name, entry.incarnation) for entry in directory.nodes}
        for name, incarnation in self._nodes - nodes:
            self.remote.node_gone(name, incarnation)
        self._nodes = nodes
        before, self._directory = self._directory, {entry.name: entry for entry in directory.actors}
        self._version = directory.version
        self._routes.clear()
        for name, entry in self._directory.items():
            self._notice(before.get(name), entry)
        for name in before.keys() - self._directory.keys():
            self._notice_removal(before[name])
        self.remote.directory_changed()
        changed, self._changed = self._changed, self.loop.create_future()
        changed.set_result(None)

    def _notice(self, old: ActorEntry | None, new: ActorEntry) -> None:
        """Report the end of the old incarnation, then the beginning of the new one."""
        was_up = old is not None and old.up
        if old is not None and was_up and (not new.up or new.incarnation != old.incarnation):
            self.remote.peer_gone(old)
            self._tell_watchers(_down(old, new))
        elif old is not None and not was_up and new.final and not old.final:
            self._tell_watchers(_down(new, new))
        if new.up and (not was_up or old is None or old.incarnation != new.incarnation):
            self._tell_watchers(_up(new))
        elif new.up and old is not None and old.facts != new.facts:
            self._tell_watchers(_changed(new))

    def _notice_removal(self, old: ActorEntry) -> None:
        """Report the end of an actor that left the topology."""
        if old.up:
            self.remote.peer_gone(old)
        gone = msgspec.structs.replace(old, up=False, final=True, reason=REMOVED)
        self._tell_watchers(_down(old, gone))
        self._crashes.pop(old.name, None)

    def watch(self, address: str, cell: Cell) -> None:
        """Subscribe a cell to an address. Actors that are up, or down for good, are reported first."""
        for kind in (ActorUp, ActorDown):
            if kind not in cell.actor.handlers:
                raise TypeError(f"{cell.name} watches {address} but has no handler for {kind.__name__}")
        self._watchers[(address, cell.name)] = cell
        for entry in self._directory.values():
            if (entry.up or entry.final) and matches(address, entry.name, cell.replica):
                self._tell_watcher(cell, _up(entry) if entry.up else _down(entry, entry))

    def _tell_watchers(self, event: ActorUp | ActorDown | ActorChanged) -> None:
        for (pattern, _), cell in list(self._watchers.items()):
            if matches(pattern, event.address, cell.replica):
                self._tell_watcher(cell, event)

    def _tell_watcher(self, cell: Cell, event: ActorUp | ActorDown | ActorChanged) -> None:
        """Deliver an event to a watcher. Actors of its replica are named without the prefix.

        Changes of facts go only to watchers that have a handler.
        """
        if isinstance(event, ActorChanged) and ActorChanged not in cell.actor.handlers:
            return
        if cell.replica:
            event = msgspec.structs.replace(event, address=event.address.removeprefix(cell.replica))
        cell.deliver(Envelope(event, SUPERVISOR))

    def _resolve(self, address: str, replica: str) -> list[Cell | ActorEntry]:
        """Return the actors that an address means now: cells of this node, or entries of actors on others.

        The result is kept until anything changes.
        """
        route: list[Cell | ActorEntry] = []
        for candidate in candidates(address, replica):
            names = members(candidate, self._known()) if candidate.endswith(ALL) else (candidate,)
            route = [place for place in map(self._place, names) if place is not None]
            if route:
                break
        self._routes[(address, replica)] = route
        return route

    def has_node(self, name: str) -> bool:
        """Tell whether a node is up, as far as this one knows."""
        return any(name == known for known, _ in self._nodes)

    def _known(self) -> list[str]:
        return [*self._directory, *(name for name in self.cells if name not in self._directory)]

    def _place(self, name: str) -> Cell | ActorEntry | None:
        cell = self.cells.get(name)
        if cell is not None:
            return cell
        entry = self._directory.get(name)
        # An actor that the directory places here, and that has no cell, has just ended.
        if entry is not None and entry.up and entry.node != self.name:
            return entry
        if name.startswith(AGENT) or name == SUPERVISOR:
            return ActorEntry(name=name, node=self._node_of(name), incarnation=0, up=True)
        return None

    def _node_of(self, name: str) -> str:
        return self.remote.root if name == SUPERVISOR else name.removeprefix(AGENT)

    def _one_of(self, address: str, replica: str) -> Cell | ActorEntry | None:
        """Return the actor that an ask goes to: the one of that name, or the next of the group of that name."""
        route = self._routes.get((address, replica)) or self._resolve(address, replica)
        if not route and not address.endswith(ALL):
            route = self._routes.get((address + ALL, replica)) or self._resolve(address + ALL, replica)
        if len(route) < 2:
            return route[0] if route else None
        route = [place for place in route if not (isinstance(place, Cell) and place.closed)] or route
        self._turns[address] += 1
        return route[self._turns[address] % len(route)]

    def _may_start(self, address: str, replica: str) -> bool:
        """Tell whether an address that leads nowhere now belongs to an actor that is being started or
        restarted.
        """
        for candidate in candidates(address, replica):
            names = (candidate, *members(candidate, self._directory))
            entries = [self._directory[name] for name in names if name in self._directory]
            if any(not entry.final for entry in entries):
                return True
        return False

    # Sending.

    def tell(self, address: str, message: Message, sender: Cell | None = None) -> None:
        """Send a message without an answer to every actor that the address means."""
        freeze(message)
        replica = sender.replica if sender is not None else ""
        route = self._routes.get((address, replica))
        if route is None:
            route = self._resolve(address, replica)
        if not route:
            why = "actor down" if self._may_start(address, replica) else "no such actor"
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
        deadline = self.clock.now() + timeout
        deaths = 0
        while True:
            place = await self._find(address, request, deadline, sender)
            try:
                return await self._ask_once(place, address, request, timeout, deadline, sender)
            except PeerGone:
                if not again or self.stopped:
                    raise
                await self._outlive(place, deadline)
                entry = self._directory.get(place.name)
                deaths += entry is None or entry.reason != SWAPPED
                if deaths == deaths_max:
                    raise

    async def _outlive(self, place: Cell | ActorEntry, deadline: float) -> None:
        """Return when that life of an actor is known to be over, or at the deadline."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._lives(place):
                    await asyncio.shield(self._changed)

    def _lives(self, place: Cell | ActorEntry) -> bool:
        entry = self._directory.get(place.name)
        return entry is not None and entry.up and entry.incarnation == place.incarnation

    async def _ask_once(
        self,
        place: Cell | ActorEntry,
        address: str,
        request: Message,
        timeout: float,
        deadline: float,
        sender: Cell | None,
    ) -> Any:
        answer = Answer(self.loop)
        cancel = self._send_request(place, request, sender, answer, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await answer.future
        except TimeoutError as error:
            # The handler itself ran into a deadline, which is relayed.
            if isinstance(error, DeadlineExceeded):
                raise
            cancel()
            raise DeadlineExceeded(
                f"{address} did not answer {type(request).__name__} within {timeout:g} s"
            ) from None
        except asyncio.CancelledError:
            cancel()
            raise

    async def stream(
        self, address: str, request: Message, timeout: float, sender: Cell | None = None, credit: int = 64
    ) -> AsyncIterator[Any]:
        """Iterate over the replies of a stream; `timeout` bounds the wait for each, in seconds. See
        `Actor.stream`.
        """
        deadline = self.clock.now() + timeout
        items = Items(self.loop, credit)
        place = await self._find(address, request, deadline, sender)
        cancel = self._send_request(place, request, sender, items, None)
        complete = False
        try:
            while True:
                try:
                    async with asyncio.timeout(timeout):
                        item = await items.next()
                except StopAsyncIteration:
                    complete = True
                    return
                yield item
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            raise DeadlineExceeded(f"{address}: no item within {timeout:g} s") from None
        finally:
            items.close()
            if not complete:
                cancel()

    def _send_request(
        self,
        place: Cell | ActorEntry,
        request: Message,
        sender: Cell | None,
        reply: Answer | Items,
        deadline: float | None,
    ) -> Any:
        """Send an ask; return the function that cancels it."""
        freeze(request)
        if not isinstance(place, Cell):
            return self.remote.ask(place, request, sender, reply, deadline)
        envelope = self._deliver(place, request, sender, reply)
        return lambda: place.cancel(envelope)

    async def _find(
        self, address: str, request: Message, deadline: float, sender: Cell | None
    ) -> Cell | ActorEntry:
        """Return the actor that an ask goes to, waiting for one that is being restarted."""
        replica = sender.replica if sender is not None else ""
        while True:
            if self.stopped:
                raise PeerGone(f"{address} cannot be asked: node {self.name} has stopped")
            place = self._one_of(address, replica)
            if place is not None and not (isinstance(place, Cell) and place.closed):
                return place
            if not self._may_start(address, replica):
                self._raise_nowhere(address)
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(self._changed)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{address} was down until the deadline of {type(request).__name__}"
                ) from None

    def _raise_nowhere(self, address: str) -> None:
        entry = self._directory.get(address)
        if entry is not None:
            raise GivenUp(f"{address} is down and will not be restarted: {entry.reason}")
        if address in self.cells:
            raise PeerGone(f"{address} is down")
        raise NoSuchActor(f"there is no actor {address!r} here; {expected(address, self._known())}")

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
        return dict(self._directory)

    def entry(self, name: str) -> ActorEntry | None:
        """Return this node's entry of an actor, or None."""
        return self._directory.get(name)


def _up(entry: ActorEntry) -> ActorUp:
    return ActorUp(
        address=entry.name, incarnation=entry.incarnation, features=entry.features, facts=entry.facts
    )


def _changed(entry: ActorEntry) -> ActorChanged:
    return ActorChanged(address=entry.name, incarnation=entry.incarnation, facts=entry.facts)


def _down(old: ActorEntry, new: ActorEntry) -> ActorDown:
    return ActorDown(
        address=old.name, incarnation=old.incarnation, reason=new.reason or "restarted", final=new.final
    )
