"""Names of actors, resolved as one node knows them: to its own cells, or to actors on other nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pageant.actors.runtime.address import AGENT, ALL, SUPERVISOR, candidates, members
from pageant.protocol.checks import expected
from pageant.protocol.errors import GivenUp, NoSuchActor, PeerGone
from pageant.protocol.supervision import ActorEntry, Directory

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell


class Names:
    """The latest directory, and the routes that follow from it. Belongs to the node's loop.

    Args:
        node: the node's name.
        cells: the actors that it hosts, by full name; the node adds and removes them.
        root: returns the name of the root node, where the supervisor lives.
    """

    def __init__(self, node: str, cells: Mapping[str, Cell], root: Callable[[], str]) -> None:
        self._node, self._cells, self._root = node, cells, root
        # The latest directory's actors, by name.
        self.entries: dict[str, ActorEntry] = {}
        # Names and incarnations of the nodes that are up.
        self.nodes: set[tuple[str, int]] = set()
        # The version of the latest directory; older ones are ignored.
        self.version = 0
        # Resolved addresses, by address and replica of the sender. Cleared at every change.
        self._routes: dict[tuple[str, str], list[Cell | ActorEntry]] = {}
        # Counts asks of each group, which are served in turn.
        self._turns: Counter[str] = Counter()
        # The node has stopped.
        self.closed = False
        # Resolved and replaced at every new directory, and resolved for good when the node stops.
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def update(self, directory: Directory) -> dict[str, ActorEntry]:
        """Take the actors of a new directory. Return the entries before it, by name."""
        before, self.entries = self.entries, {entry.name: entry for entry in directory.actors}
        self.version = directory.version
        self.forget_routes()
        return before

    def forget_routes(self) -> None:
        """Resolve every address anew from now on."""
        self._routes.clear()

    def wake(self) -> None:
        """Wake whoever waits for a change."""
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    def close(self) -> None:
        """Wake whoever waits for a change: none will come, as the node has stopped."""
        self.closed = True
        if not self._changed.done():
            self._changed.set_result(None)

    async def change(self) -> None:
        """Return at the next new directory."""
        await asyncio.shield(self._changed)

    def has_node(self, name: str) -> bool:
        """Tell whether a node is up, as far as this one knows."""
        return any(name == known for known, _ in self.nodes)

    def is_alive(self, place: Cell | ActorEntry) -> bool:
        """Tell whether that life of an actor goes on, as far as this node knows."""
        entry = self.entries.get(place.name)
        return entry is not None and entry.up and entry.incarnation == place.incarnation

    def all_of(self, address: str, replica: str) -> list[Cell | ActorEntry]:
        """Return the actors that an address means now: cells of this node, or entries of actors on others.

        The result is kept until anything changes.
        """
        route = self._routes.get((address, replica))
        return self._resolve(address, replica) if route is None else route

    def _resolve(self, address: str, replica: str) -> list[Cell | ActorEntry]:
        route: list[Cell | ActorEntry] = []
        for candidate in candidates(address, replica):
            names = members(candidate, self._known()) if candidate.endswith(ALL) else (candidate,)
            route = [place for place in map(self._place, names) if place is not None]
            if route:
                break
        self._routes[(address, replica)] = route
        return route

    def _known(self) -> list[str]:
        return [*self.entries, *(name for name in self._cells if name not in self.entries)]

    def _place(self, name: str) -> Cell | ActorEntry | None:
        cell = self._cells.get(name)
        if cell is not None:
            return cell
        entry = self.entries.get(name)
        # An actor that the directory places here, and that has no cell, has just ended.
        if entry is not None and entry.up and entry.node != self._node:
            return entry
        if name.startswith(AGENT) or name == SUPERVISOR:
            node = self._root() if name == SUPERVISOR else name.removeprefix(AGENT)
            return ActorEntry(name=name, node=node, incarnation=0, up=True)
        return None

    def one_of(self, address: str, replica: str) -> Cell | ActorEntry | None:
        """Return the actor that an ask goes to: the one of that name, or the next of the group of that name."""
        route = self._routes.get((address, replica)) or self._resolve(address, replica)
        if not route and not address.endswith(ALL):
            route = self._routes.get((address + ALL, replica)) or self._resolve(address + ALL, replica)
        if len(route) < 2:
            return route[0] if route else None
        route = [place for place in route if isinstance(place, ActorEntry) or not place.closed] or route
        self._turns[address] += 1
        return route[self._turns[address] % len(route)]

    def may_start(self, address: str, replica: str) -> bool:
        """Tell whether an address that leads nowhere now belongs to an actor that is being started again."""
        for candidate in candidates(address, replica):
            names = (candidate, *members(candidate, self.entries))
            entries = [self.entries[name] for name in names if name in self.entries]
            if any(not entry.final for entry in entries):
                return True
        return False

    def raise_nowhere(self, address: str) -> None:
        """Raise the error of an ask whose address leads nowhere, and will not."""
        entry = self.entries.get(address)
        if entry is not None:
            raise GivenUp(f"{address} is down and will not be restarted: {entry.reason}")
        if address in self._cells:
            raise PeerGone(f"{address} is down")
        raise NoSuchActor(f"there is no actor {address!r} here; {expected(address, self._known())}")
