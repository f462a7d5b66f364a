"""A cluster in model time: the router's real core, and replicas that take their time for tokens as a scheduler's do."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pageant.actors.router.core import RouterCore
from pageant.actors.router.policies import make_policy
from pageant.protocol.arrays import int32, int64
from pageant.protocol.block_names import block_names, full_blocks, root_name
from pageant.protocol.following import BlockEvents, RemovedBlock, StoredBlock
from pageant.protocol.routing import LOAD_SECONDS, Load, Route

BLOCK_SIZE = 16
STEP_TOKENS = 512
STEP_SECONDS = 0.002
TOKEN_SECONDS = 0.0001


@dataclass
class Arrival:
    """A request: when it comes, its prompt, and the tokens that it will say."""

    at: float
    prompt: list[int]
    output: int = 1


@dataclass(eq=False)
class Job:
    """A request on a replica."""

    arrival: Arrival
    left: int
    output: int
    first_at: float | None = None


@dataclass(eq=False)
class ModelReplica:
    """A replica: a queue, steps within a budget of tokens, and a cache that forgets what was used longest ago."""

    name: str
    speed: float
    capacity: int
    """Blocks that the cache holds."""
    jobs: list[Job] = field(default_factory=list)
    cache: dict[bytes, None] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    tokens: int = 0
    """Tokens that were computed here."""
    hit_tokens: int = 0
    """Tokens of prompts that were not."""
    mean_output: float = 0.0
    is_stepping: bool = False
    loaded_at: float = -1.0
    is_loading: bool = False

    def take(self, arrival: Arrival, names: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Queue a request. Return the blocks that it is going to compute, and those that give way to them."""
        depth = next((at for at, name in enumerate(names) if name not in self.cache), len(names))
        self.jobs.append(Job(arrival, len(arrival.prompt) - depth * BLOCK_SIZE, arrival.output))
        self.hit_tokens += depth * BLOCK_SIZE
        new = [name for name in names if name not in self.cache]
        for name in reversed(names):  # the end of a prompt is forgotten first
            self.cache.pop(name, None)
            self.cache[name] = None
        gone = [*self.cache][: max(0, len(self.cache) - self.capacity)]
        for name in gone:
            del self.cache[name]
        return new, gone

    def step(self) -> tuple[float, list[Job]]:
        """Compute a step. Return its seconds, and those that have a token by it."""
        budget, done, rows = STEP_TOKENS, 0, []
        for job in self.jobs:
            count = min(job.left, budget)
            job.left -= count
            budget -= count
            done += count
            if not job.left and (count or job.first_at is not None) and budget >= 0:
                rows.append(job)
                if job.first_at is not None:
                    budget, done = budget - 1, done + 1
            if budget <= 0:
                break
        self.tokens += done
        return (STEP_SECONDS + done * TOKEN_SECONDS) / self.speed, rows


class ModelCluster:
    """Replicas of these speeds behind the router's core.

    Args:
        delay: seconds that each `Load` is on its way.
        capacity: blocks that each replica's cache holds.
    """

    def __init__(
        self, routing: str, speeds: list[float], delay: float = 0.0, capacity: int = 1 << 20
    ) -> None:
        self.core = RouterCore(make_policy(routing))
        names = [f"replica-{number}/" for number in range(len(speeds))]
        each = zip(names, speeds, strict=True)
        self.replicas = {name: ModelReplica(name, speed, capacity) for name, speed in each}
        self.delay, self.now = delay, 0.0
        self.waits: list[float] = []
        self.places: list[str] = []
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, object]] = []
        for name in self.replicas:
            self.core.scheduler_up(name, 1)
            self._tell_blocks(name, [], reset=True)
            self.core.loaded(name, 1, self._load(self.replicas[name]))

    def _at(self, time: float, action: object) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def run(self, arrivals: list[Arrival]) -> ModelCluster:
        """Serve all requests to their ends."""
        for arrival in arrivals:
            self._at(arrival.at, arrival)
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            self._arrive(action) if isinstance(action, Arrival) else action()  # type: ignore[operator]
        return self

    def _arrive(self, arrival: Arrival) -> None:
        token_ids = int32(arrival.prompt)
        asked = Route(
            **{
                "model": "",
                "token_ids": token_ids,
                "lengths": int32([len(token_ids)]),
                "max_tokens": int32([0]),
            },
            **{
                "salts": (None,),
                "extra_keys": ((),),
                "adapters": (None,),
                "tenants": ("",),
                "text_tokens": int32([len(token_ids)]),
            },
        )
        routed = self.core.route(asked, self.now)
        (name,), (ticket,) = routed.places, routed.tickets.tolist()
        self.places.append(name)
        replica = self.replicas[name]
        new, gone = replica.take(
            arrival, block_names(root_name(), full_blocks(token_ids[:-1], BLOCK_SIZE)[0])
        )
        replica.seen.append(ticket)
        self._tell_blocks(name, new, gone)
        self._publish(replica)
        self._begin(replica)

    def _tell_blocks(
        self, name: str, new: list[bytes], gone: list[bytes] = (), *, reset: bool = False
    ) -> None:  # type: ignore[assignment]
        stored = tuple(StoredBlock(tier="device", name=one) for one in new)
        removed = tuple(RemovedBlock(tier="device", name=one) for one in gone)
        events = BlockEvents(epoch=1, block_size=BLOCK_SIZE, stored=stored, removed=removed, reset=reset)
        self.core.blocks_changed(name, events)

    def _begin(self, replica: ModelReplica) -> None:
        if replica.is_stepping or not replica.jobs:
            return
        replica.is_stepping = True
        seconds, rows = replica.step()
        self._at(self.now + seconds, lambda: self._stepped(replica, rows))

    def _stepped(self, replica: ModelReplica, rows: list[Job]) -> None:
        replica.is_stepping = False
        for job in rows:
            if job.first_at is None:
                job.first_at = self.now
                self.waits.append(self.now - job.arrival.at)
            job.output -= 1
            if not job.output:
                replica.mean_output += (0.05 if replica.mean_output else 1) * (
                    job.arrival.output - replica.mean_output
                )
                replica.jobs.remove(job)
        self._publish(replica)
        self._begin(replica)

    def _publish(self, replica: ModelReplica) -> None:
        if not replica.is_loading:
            replica.is_loading = True
            self._at(max(self.now, replica.loaded_at + LOAD_SECONDS), lambda: self._send(replica))

    def _send(self, replica: ModelReplica) -> None:
        replica.is_loading, replica.loaded_at = False, self.now
        load = self._load(replica)
        replica.seen = []
        self._at(self.now + self.delay, lambda: self.core.loaded(replica.name, 1, load))

    def _load(self, replica: ModelReplica) -> Load:
        running = [job for job in replica.jobs if not job.left]
        return Load(
            seen=int64(replica.seen),
            waiting_tokens=sum(job.left for job in replica.jobs),
            running=len(running),
            waiting=len(replica.jobs) - len(running),
            seconds_per_token=TOKEN_SECONDS / replica.speed,
            output_tokens=replica.mean_output,
        )

    # What came of it.

    @property
    def computed(self) -> list[int]:
        """Return the tokens that each replica computed."""
        return [one.tokens for one in self.replicas.values()]

    @property
    def hit_tokens(self) -> int:
        """Return the tokens of prompts that were not computed."""
        return sum(one.hit_tokens for one in self.replicas.values())

    def late(self, share: float = 0.99) -> float:
        """Return the time to the first token that this share of the requests had at most."""
        waits: deque[float] = deque(sorted(self.waits))
        return waits[min(len(waits) - 1, int(share * len(waits)))]


def prompt(random: np.random.Generator, prefix: list[int], own: int) -> list[int]:
    """Return a prompt with that prefix and `own` further tokens."""
    return [*prefix, *random.integers(1, 30_000, own).tolist()]
