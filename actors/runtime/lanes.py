"""The threads of one actor, in which the functions run that it offloads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from pageant.actors.runtime.platform import Lane, Platform

R = TypeVar("R")

LANE_POLL_SECONDS = 0.01


class Lanes:
    """Lanes of threads by name, each opened at its first use. Belongs to the loop of the actor's node.

    Args:
        owner: the actor's name, for the names of threads.
    """

    def __init__(self, platform: Platform, owner: str) -> None:
        self._platform, self._owner = platform, owner
        self._lanes: dict[str, Lane] = {}
        self.is_stuck = False
        """A function was still running when the lanes were closed last."""

    async def run(self, call: Callable[[], R], lane: str, threads: int) -> R:
        """Run a function in a lane of so many threads, or in what the platform has in place of threads."""
        if lane not in self._lanes:
            self._lanes[lane] = self._platform.open_lane(f"pageant {self._owner} {lane}".rstrip(), threads)
        return await self._lanes[lane].run(call)

    def close(self) -> None:
        """Begin nothing more in any lane."""
        self.is_stuck = any([lane.close() for lane in self._lanes.values()])

    async def wait(self, seconds: float) -> None:
        """Wait for functions that still run, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_stuck:
                    await asyncio.sleep(LANE_POLL_SECONDS)
                    self.close()
