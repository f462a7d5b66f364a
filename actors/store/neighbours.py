"""Blocks that stores of other hosts have, as far as they have said. A core: no I/O, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

Change = tuple[bytes, bool]
"""A name, and whether it came or went."""


class Neighbours:
    """The stores of other hosts, by name, and what they have.

    Attributes:
        fetches: how many fetches from each store are under way. Of two stores with a block, the less busy one is asked.
    """

    def __init__(self) -> None:
        self.fetches: Counter[str] = Counter()
        # The stores that have a block, by kind and name.
        self._holders: defaultdict[bytes, dict[bytes, list[str]]] = defaultdict(dict)

    def __contains__(self, name: bytes) -> bool:
        return any(name in holders for holders in self._holders.values())

    def names(self, kind: bytes) -> Iterator[bytes]:
        """Yield the names of all blocks of a kind that some store has."""
        return iter(self._holders[kind])

    def change(
        self, peer: str, kind: bytes, came: Iterable[bytes], went: Iterable[bytes], *, reset: bool
    ) -> list[Change]:
        """Take in a store's events. Return which names any store has from now on, and which none has any more."""
        changes = self.forget(peer, kind) if reset else []
        holders = self._holders[kind]
        for name in went:
            changes += self._remove(peer, holders, name)
        for name in came:
            known = holders.setdefault(name, [])
            if peer not in known:
                known.append(peer)
                changes += [(name, True)] if len(known) == 1 else []
        return changes

    def _remove(self, peer: str, holders: dict[bytes, list[str]], name: bytes) -> Iterator[Change]:
        known = holders.get(name, [])
        if peer in known:
            known.remove(peer)
            if not known:
                del holders[name]
                yield name, False

    def forget(self, peer: str, kind: bytes) -> list[Change]:
        """Forget what a store has of a kind: it is gone. Return the names that no store has any more."""
        holders = self._holders[kind]
        return [change for name in list(holders) for change in self._remove(peer, holders, name)]

    def gone(self, peer: str, kind: bytes, name: bytes) -> list[Change]:
        """Take note that a store does not have a block after all."""
        return list(self._remove(peer, self._holders[kind], name))

    def shares(self, kind: bytes, names: Sequence[bytes]) -> dict[str, list[bytes]]:
        """Return which store to fetch each of these blocks from, by store; the blocks in their order.

        A store that has the first of them is asked for all that it has.
        """
        found: dict[str, list[bytes]] = {}
        holders = self._holders[kind]
        for name in names:
            known = holders.get(name)
            if known:
                chosen = min(known, key=lambda peer: (peer not in found, self.fetches[peer], peer))
                found.setdefault(chosen, []).append(name)
        return found
