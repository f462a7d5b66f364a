"""Memory of a store in a simulation: every process of the simulation can map it while the store's process lives."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import numpy as np

from pageant.actors.runtime.simulation.loop import PROCESS
from pageant.protocol.arena import Arena

_ARENAS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SimulatedArena]] = WeakKeyDictionary()
"""Memory of the stores of each simulation, by path."""


class SimulatedArena(Arena):
    """Memory with a path that is the same in every run of a seed."""

    def __init__(self, num_bytes: int, path: str) -> None:
        self.path, self.num_bytes = path, num_bytes
        self.bytes = np.zeros(num_bytes, np.uint8)
        self.words = self.bytes.view(np.uint64)
        self._process = PROCESS.get()

    @classmethod
    def create(cls, num_bytes: int) -> SimulatedArena:
        """Return fresh memory of the process that runs."""
        arenas = _ARENAS.setdefault(asyncio.get_running_loop(), {})
        path = f"simulated/{len(arenas)}"
        arenas[path] = arena = cls(num_bytes, path)
        return arena

    @classmethod
    def open(cls, path: str, num_bytes: int) -> Arena:
        """Return the memory of a store whose process lives.

        Raises:
            OSError: it is dead.
        """
        arena = _ARENAS.get(asyncio.get_running_loop(), {}).get(path)
        if arena is None or arena.num_bytes < num_bytes or (arena._process and arena._process.dead):
            raise OSError(f"{path} is gone")
        return arena

    def populate(self, start: int, end: int) -> None:
        """Do nothing: all pages are there."""
