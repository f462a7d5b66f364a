"""The client of a calibration, a process of its own: asks a server, and writes the times of its requests as JSON.

Prompts and lengths are none of any workload that plans are compared with.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator

import msgspec

from pageant.actors.runtime.loop import new_event_loop
from pageant.protocol.arrays import int32
from pageant.scripts.http_client import Client
from pageant.scripts.planning.driving import timed
from pageant.scripts.planning.requests import PlannedRequest

__all__ = ["OUTPUT_TOKENS", "Asked", "Asking"]

PROMPT_TOKENS = (16, 1024)
"""The least and the most tokens of a prompt, as far as the model takes so many."""
OUTPUT_TOKENS = 32
"""Tokens of the outputs of rounds; those of users have half to one and a half times as many."""
TOKEN_IDS = (10, 250)
"""First and last token id of the prompts, which every vocabulary has."""


class Asked(msgspec.Struct, frozen=True):
    """Request that was served. Times are of `time.perf_counter`, in seconds."""

    prompt: list[int]
    together: int
    """Requests that were due at the same moment."""
    due: float
    first_at: float


class Asking(msgspec.Struct, frozen=True):
    """Description of what is to be asked.

    Attributes:
        longest: the most tokens of a prompt.
        rounds: requests at once, one round after another.
        users: how many of them ask again when their answers have come, and how many requests they have in sum.
        seed: of prompts and lengths.
    """

    url: str
    longest: int
    rounds: tuple[int, ...]
    users: tuple[tuple[int, int], ...] = ()
    seed: int = 0


class _Asker:
    def __init__(self, asking: Asking) -> None:
        self._asking, self._client = asking, Client(asking.url)
        self._chance = random.Random(asking.seed)
        self._asked: list[Asked] = []

    async def run(self) -> list[Asked]:
        """Ask everything; requests that fail are left out."""
        for together in self._asking.rounds:
            await self._round(together)
        for users, count in self._asking.users:
            left = iter(range(count))
            await asyncio.gather(*(self._user(left) for _ in range(users)))
        self._client.close()
        return self._asked

    async def _round(self, together: int) -> None:
        due = time.perf_counter()
        await asyncio.gather(*(self._ask(due, together, OUTPUT_TOKENS) for _ in range(together)))

    async def _user(self, left: Iterator[int]) -> None:
        for _ in left:
            await self._ask(
                time.perf_counter(), 1, self._chance.randint(OUTPUT_TOKENS // 2, OUTPUT_TOKENS * 3 // 2)
            )

    async def _ask(self, due: float, together: int, tokens: int) -> None:
        prompt = self._prompt()
        times = await timed(self._client, PlannedRequest(0.0, int32(prompt), tokens, tokens), due)
        if times.first_at is not None:
            self._asked.append(Asked(prompt, together, due, times.first_at))

    def _prompt(self) -> list[int]:
        low = min(PROMPT_TOKENS[0], self._asking.longest)
        high = min(PROMPT_TOKENS[1], self._asking.longest)
        count = round(low * (high / low) ** self._chance.random())
        return [self._chance.randint(*TOKEN_IDS) for _ in range(count)]


async def _answer() -> None:
    """Ask what each line of the standard input describes, and write the times as a line, until there is no more."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        asked = await _Asker(msgspec.json.decode(line, type=Asking)).run()
        sys.stdout.buffer.write(msgspec.json.encode(asked) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Ask until the standard input ends."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_answer())


if __name__ == "__main__":
    main()
