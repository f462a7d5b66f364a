"""Watchers: the actors of a node that asked to be told of others' lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from pageant.actors.runtime.address import SUPERVISOR, matches
from pageant.actors.runtime.mailbox import Envelope
from pageant.protocol.supervision import ActorChanged, ActorDown, ActorEntry, ActorUp

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell


class Watchers:
    """The subscriptions of a node's cells. Belongs to the node's loop."""

    def __init__(self) -> None:
        # Watching cells, by watched address and the watcher's name.
        self._cells: dict[tuple[str, str], Cell] = {}

    def add(self, address: str, cell: Cell, entries: Iterable[ActorEntry]) -> None:
        """Subscribe a cell to an address. Actors that are up, or down for good, are reported first."""
        for kind in (ActorUp, ActorDown):
            if kind not in cell.actor.handlers:
                raise TypeError(f"{cell.name} watches {address} but has no handler for {kind.__name__}")
        self._cells[(address, cell.name)] = cell
        for entry in entries:
            if (entry.up or entry.final) and matches(address, entry.name, cell.replica):
                _tell(cell, _up(entry) if entry.up else _down(entry, entry))

    def remove(self, cell: Cell) -> None:
        """End the subscriptions of a cell that ended."""
        self._cells = {key: watcher for key, watcher in self._cells.items() if watcher is not cell}

    def life_ended(self, old: ActorEntry, new: ActorEntry) -> None:
        """Report the end of the life of `old`; `new` is the actor's entry after it."""
        self._tell_all(_down(old, new))

    def life_began(self, entry: ActorEntry) -> None:
        """Report that an actor takes messages."""
        self._tell_all(_up(entry))

    def facts_changed(self, entry: ActorEntry) -> None:
        """Report new facts of an actor that is up, to watchers that have a handler for it."""
        self._tell_all(ActorChanged(address=entry.name, incarnation=entry.incarnation, facts=entry.facts))

    def _tell_all(self, event: ActorUp | ActorDown | ActorChanged) -> None:
        for (pattern, _), cell in list(self._cells.items()):
            if matches(pattern, event.address, cell.replica):
                _tell(cell, event)


def _tell(cell: Cell, event: ActorUp | ActorDown | ActorChanged) -> None:
    """Deliver an event to a watcher. Actors of its replica are named without the prefix."""
    if isinstance(event, ActorChanged) and ActorChanged not in cell.actor.handlers:
        return
    if cell.replica:
        event = msgspec.structs.replace(event, address=event.address.removeprefix(cell.replica))
    cell.deliver(Envelope(event, SUPERVISOR))


def _up(entry: ActorEntry) -> ActorUp:
    return ActorUp(
        address=entry.name, incarnation=entry.incarnation, features=entry.features, facts=entry.facts
    )


def _down(old: ActorEntry, new: ActorEntry) -> ActorDown:
    return ActorDown(
        address=old.name, incarnation=old.incarnation, reason=new.reason or "restarted", final=new.final
    )
