"""Operator who adds, drains and removes replicas while requests are served and faults strike."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pageant.actors.runtime.address import index_of, replica_of, role_of
from pageant.actors.runtime.simulation import Simulation, Violation
from pageant.protocol.errors import PageantError, RemoteError
from pageant.protocol.replicas import (
    AddReplica,
    DrainReplica,
    GetReplicas,
    MoveRequests,
    RemoveReplica,
    Replicas,
)
from pageant.scripts.simulate.replicas import LIFECYCLE, REPLICAS_MAX, ROUTER

CHANGES = (2, 6)
MOVES = (0, 8)
MOVED_TOKENS = (40, 150, 1000)
ANSWER_SECONDS_MAX = 200.0  # in which each change is carried out or refused, whatever dies meanwhile
POLL_SECONDS = 0.05
REFUSED = "BadRequest"
"""It is the last one, it is gone, or it is being drained."""
INTERRUPTED = ("PeerGone", "GivenUp", "DeadlineExceeded")
"""Whoever carries it out has died, or a replica was removed while it was added."""
KEEPS_ALL = ("add", "move")
"""Changes after which every replica is there that was."""
Kind = Literal["add", "drain", "remove", "move"]


@dataclass(frozen=True)
class Change:
    """A change of the replicas, `at` so many seconds after the topology is up.

    Attributes:
        target, num_tokens, frontend: of a move of open requests from `name` to another replica: the frontend whose
            requests move, and how many tokens they have at most.
    """

    at: float
    kind: Kind
    name: str
    patience: float
    force: bool
    target: str = ""
    num_tokens: int = 0
    frontend: str = ""

    def request(self) -> AddReplica | DrainReplica | RemoveReplica | MoveRequests:
        """Return the message that asks for it."""
        match self.kind:
            case "add":
                return AddReplica()
            case "drain":
                return DrainReplica(name=self.name, patience=self.patience, force=self.force)
            case "remove":
                return RemoveReplica(name=self.name, force=self.force)
            case "move":
                places = {"source": f"{self.name}/", "target": f"{self.target}/"}
                return MoveRequests(**places, num_tokens=self.num_tokens)


def draw_changes(random: Random, seconds: float) -> list[Change]:
    """Return the changes within `seconds`, in their order."""
    found = [
        Change(
            at=random.uniform(0.0, seconds),
            kind=random.choice(("add", "add", "drain", "drain", "remove")),
            name=f"replica-{random.randrange(REPLICAS_MAX)}",
            patience=random.choice((0.0, 0.0, 0.3, 5.0)),
            force=random.random() < 0.2,
        )
        for _ in range(random.randint(*CHANGES))
    ]
    return sorted(found, key=lambda change: change.at)


def draw_moves(random: Random, seconds: float, frontends: Sequence[str]) -> list[Change]:
    """Return moves of open requests between replicas within `seconds`."""
    names = [f"replica-{number}" for number in range(REPLICAS_MAX)]
    found = []
    for _ in range(random.randint(*MOVES)):
        source, target = random.sample(names, 2)
        at, tokens = random.uniform(0.0, seconds), random.choice(MOVED_TOKENS)
        found.append(Change(at, "move", source, 0.0, False, target, tokens, random.choice(frontends)))
    return found


class Operator:
    """Carries out changes of the replicas.

    Args:
        say: told of what must not be.
        counters: of what was done and refused, by kind.

    Attributes:
        is_busy: a change is being carried out, or was a moment ago.
    """

    def __init__(
        self, changes: list[Change], say: Callable[[Violation], None], counters: Counter[str]
    ) -> None:
        self._changes, self._say, self._counters = changes, say, counters
        self._going = self._adding = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_busy(self) -> bool:
        """Tell whether a change is being carried out."""
        return self._going > 0

    def begin(self, simulation: Simulation) -> None:
        """Carry out each change at its time."""
        for change in self._changes:
            self._tasks.append(simulation.loop.create_task(self._carry_out(simulation, change)))

    async def finish(self, simulation: Simulation) -> None:
        """Return when all changes are over, no replica is on its way out, and one takes requests."""
        await asyncio.gather(*self._tasks)
        latest = simulation.loop.time() + ANSWER_SECONDS_MAX
        while True:
            states = await self._states(simulation)
            if states is not None and not states:
                await self._ask(simulation, Change(0.0, "add", "", 0.0, False))
            elif states is not None and set(states.values()) == {"up"}:
                return
            if simulation.loop.time() > latest:
                raise Violation(f"the replicas do not come to rest: {states}")
            await asyncio.sleep(POLL_SECONDS)

    def find_misbeliefs(self, simulation: Simulation, *, is_calm: bool) -> dict[str, int]:
        """Return how far the router is from what the replicas are, now that nothing happens any more.

        Args:
            is_calm: nothing went wrong. Where no replica left either, every routed request reached its scheduler.
        """
        router: Any = simulation.cell(ROUTER)
        if router is None:
            return {"no router": 1}
        is_calm = is_calm and all(change.kind in KEEPS_ALL for change in self._changes)
        found: Counter[str] = Counter()
        for core in getattr(router.actor, "_cores", {}).values():  # somebody's own may have none
            for name, replica in core._replicas.items():
                blocks: Any = simulation.cell(f"{name}blocks")
                allocation = getattr(getattr(blocks, "actor", None), "_allocation", None)
                if allocation is not None:
                    cached = {(block.tier, block.name) for block in allocation.stored()}
                    known = set(core._index.keys_of(replica.bit))
                    found["blocks that the router misses"] += len(cached - known)
                    found["blocks that only the router knows"] += len(known - cached)
                found["charges"] += len(replica.charges) if is_calm else 0
                sum_of_charges = sum(charge.tokens for charge in replica.charges.values())
                found["tokens charged for nothing"] += abs(replica.charged_tokens - sum_of_charges)
        return {what: count for what, count in found.items() if count}

    async def _states(self, simulation: Simulation) -> dict[str, str] | None:
        try:
            found: Replicas = await simulation.cluster.node.ask(LIFECYCLE, GetReplicas(), 10.0)
        except PageantError:  # it died meanwhile
            return None
        return {one.name: one.state for one in found.replicas}

    async def _carry_out(self, simulation: Simulation, change: Change) -> None:
        await asyncio.sleep(change.at)
        if change.kind != "add":
            await self._ask(simulation, change)
        elif len(present_prefixes(simulation)) + self._adding < REPLICAS_MAX:
            self._adding += 1
            await self._ask(simulation, change)
            self._adding -= 1

    async def _ask(self, simulation: Simulation, change: Change) -> None:
        self._going += 1
        simulation.trace.note(simulation.loop.time(), str(change))
        asked_at = simulation.loop.time()
        try:
            asked = change.frontend or LIFECYCLE
            await simulation.cluster.node.ask(asked, change.request(), ANSWER_SECONDS_MAX)
            self._counters[f"replicas: {change.kind}"] += 1
        except PageantError as error:
            cause = error.cause if isinstance(error, RemoteError) else type(error).__name__
            is_late = simulation.loop.time() - asked_at >= ANSWER_SECONDS_MAX
            if is_late or cause not in (REFUSED, *INTERRUPTED):
                self._say(Violation(f"{change} failed: {error!r}"))
            how = "refused" if cause == REFUSED else "interrupted"
            self._counters[f"replicas: {change.kind} {how}"] += 1
        finally:
            self._going -= 1


def present_prefixes(simulation: Simulation) -> set[str]:
    """Return the prefixes of the replicas that there are, by the supervisor."""
    prefixes = map(replica_of, simulation.cluster.supervision.names())
    return {prefix for prefix in prefixes if index_of(prefix) is not None}


def find_remains(simulation: Simulation) -> dict[str, int]:
    """Return what is left of replicas that were removed, by what it is."""
    there = present_prefixes(simulation)
    found: Counter[str] = Counter()
    for node in simulation.nodes():
        found["directory entries"] += _gone(node.directory(), there)
        found["actors"] += _gone((name for name, cell in node.cells.items() if not cell.closed), there)
        for cell in node.cells.values():
            if role_of(cell.name) == "frontend":
                found["places of frontends"] += _gone_of(cell.actor, "_peers", there)
            elif role_of(cell.name) == "router":
                found["replicas of the router"] += _gone_of(cell.actor, "_cores", there)
    processes = simulation.platform.processes.items()
    known = simulation.cluster.supervision.has_node
    found["processes"] += sum(not process.dead and not known(name) for name, process in processes)
    return {f"{what} of removed replicas": count for what, count in found.items() if count}


def _gone(names: Any, there: set[str]) -> int:
    prefixes = [replica_of(name) for name in names]
    return sum(index_of(prefix) is not None and prefix not in there for prefix in prefixes)


def _gone_of(actor: Any, attribute: str, there: set[str]) -> int:
    """Return how many places or replicas an actor still has that are gone."""
    models = getattr(actor, attribute, {}).values()  # somebody's own actor may have none
    places = [name for one in models for name in getattr(one, "places", getattr(one, "_replicas", ()))]
    return sum(place not in there for place in places)
