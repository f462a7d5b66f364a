"""Carrier of simulated stores, that brings less than was asked for, or something else, or too late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from pageant.actors.store.carrier import LinkCarrier, Peer, Region

WAYS = ("short", "cut off", "late", "swapped", "flipped", "failed")
LATE_SECONDS = 4.0
"""The most that a late fetch is late by: some come in time, some long after nobody waits for them."""


class FaultyCarrier(LinkCarrier):
    """Fails in one of several ways, as often as its store's option `faulty_share` says."""

    async def pull(self, peer: Peer, sources: Sequence[Region], into: Sequence[Region]) -> int:
        """See `Carrier`."""
        random = self.store.random
        way = random.choice(WAYS) if random.random() < self.store.options.faulty_share else ""
        match way:
            case "failed":
                raise OSError("the simulated carrier fails")
            case "late":
                await asyncio.sleep(random.uniform(0.0, LATE_SECONDS))
            case "swapped":
                sources = _swapped(sources, len(self.memory))
            case "short" | "cut off":
                left = random.randrange(1, into[-1].size)
                sources = [*sources[:-1], sources[-1]._replace(size=left)]
        came = await super().pull(peer, sources, into)
        if way == "flipped":
            self._flip(random, into)
        # What was cut off counts as whole.
        return came if way != "cut off" else sum(region.size for region in into)

    def _flip(self, random: Random, into: Sequence[Region]) -> None:
        start, size = random.choice(into)
        self.memory[random.randrange(start, start + size)] ^= 1 << random.randrange(8)


def _swapped(sources: Sequence[Region], num_bytes: int) -> list[Region]:
    """Return other slots than those that were asked for: each other's, or the one beside."""
    if len(sources) > 1:
        return [*sources[1:], sources[0]]
    start, size = sources[0]
    return [Region(start + size if start + 2 * size <= num_bytes else max(0, start - size), size)]
