"""One seed: an engine, its users, what goes wrong, and what must hold all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import Context
from random import Random

from pageant.actors.executor.simulated_arena import tags_of
from pageant.actors.frontend.frontend import Frontend
from pageant.actors.runtime.address import role_of
from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.simulation import Fault, Outcome, Simulation, Violation, draw_faults
from pageant.actors.runtime.simulation.simulation import MOMENT_SECONDS_MAX
from pageant.protocol.serving import Finished
from pageant.scripts.simulate.inspection import Inspection
from pageant.scripts.simulate.moments import (
    CHANGING_MOMENTS,
    FAULT_MOMENTS,
    FETCH_MOMENTS,
    STORE_MOMENTS,
    WHEN,
    Scene,
    talking,
    victims,
)
from pageant.scripts.simulate.operators import Operator, draw_changes, draw_moves, find_remains
from pageant.scripts.simulate.reading import read_once
from pageant.scripts.simulate.replicas import prefixes_in
from pageant.scripts.simulate.requests import draw_requests
from pageant.scripts.simulate.spoils import Spoiler, draw_spoils
from pageant.scripts.simulate.stores import STORE, left_in_stores
from pageant.scripts.simulate.topology import END_TOKENS, MODEL, ROOT, VOCAB_SIZE, draw_engine
from pageant.scripts.simulate.users import User

REQUESTS = (20, 24)
MORE_REQUESTS = 8  # that come once all have ended, until there was as much to do as there is to be
DELIVERIES_MIN = 1000  # between nodes, in a seed
ARRIVE_SECONDS = 0.6  # in which requests come
FAULT_SECONDS = 1.0  # in which faults do, and then wait for their moments
FAULT_SHARES = {
    "frontend": 1,
    "drafter": 6,
}  # of the faults, by actor: there are several of these, or seldom one
FETCHING_SHARE = 6
"""The same of stores that fetch from one another."""
END_SECONDS_MAX = 300.0  # by which all must have ended after that
REST_SECONDS_MAX = 60.0  # by which nothing is left of them
POLL_SECONDS = 0.05
SETTLE_SECONDS = 0.6  # that a fault is felt
ABORT_SECONDS = 0.3  # after which the scheduler knows, where nothing goes wrong


class EngineSimulation:
    """A run of the whole engine.

    Args:
        faults: instead of those that the seed draws.
        classes: actors of the user's own, see `draw_engine`.
        replicas: the engine is to have replicas, whether the seed says so or not.
        num_requests: make no more than so many, and let nothing else happen than `faults`; None is as the seed says.

    Attributes:
        counters: what happened: to users, in the scheduler, and what the faults interrupted.
    """

    def __init__(
        self,
        seed: int,
        *,
        faults: Sequence[Fault] | None = None,
        classes: Mapping[str, str] | None = None,
        replicas: bool = False,
        num_requests: int | None = None,
        keep_trace: bool = False,
    ) -> None:
        random = Random(f"engine {seed}")
        engine = draw_engine(random, seed, classes, replicas=replicas)
        self.topology = topology = engine.topology
        self._homes = homes = engine.homes
        self.counters: Counter[str] = Counter()
        self._violations: list[Violation] = []
        self._model = engine.model
        self._inspection = Inspection(prefixes_in(homes))
        self._operator: Operator | None = None
        self._frontends = [name for name in homes if name.startswith("frontend/")]
        if topology.grow is not None:
            changes = draw_changes(Random(f"changes {seed}"), FAULT_SECONDS)
            changes += draw_moves(Random(f"moves {seed}"), FAULT_SECONDS, self._frontends)
            changes = changes if num_requests is None else []
            self._operator = Operator(changes, self._violations.append, self.counters)
        self._spoiler: Spoiler | None = None
        self._stores = [name for name in homes if role_of(name) == STORE]
        if self._stores:
            spoils = Random(f"spoils {seed}")
            drawn_spoils = draw_spoils(spoils, FAULT_SECONDS) if num_requests is None else []
            self._spoiler = Spoiler(self._stores, drawn_spoils, spoils)
        moments: tuple[str, ...] = FAULT_MOMENTS if self._operator is None else CHANGING_MOMENTS
        if self._stores:
            moments += STORE_MOMENTS if len(self._stores) == 1 else FETCH_MOMENTS
        self._users = self._draw_users(random, random.randint(*REQUESTS))
        self._deliveries_min = DELIVERIES_MIN
        if num_requests is not None:
            self._users, self._deliveries_min = self._users[:num_requests], 0
        self._random = Random(f"more {seed}")
        shares = FAULT_SHARES if len(self._stores) < 2 else {**FAULT_SHARES, STORE: FETCHING_SHARE}
        drawn = draw_faults(
            random,
            FAULT_SECONDS,
            ROOT,
            homes,
            targets=[name for name in homes for _ in range(shares.get(role_of(name), 2))],
            pairs=talking(homes),
            hanging=[name for name in homes if name.endswith("executor/0")],
            moments=moments,
        )
        self._disturbed_until = 0.0
        self._simulation = Simulation(
            seed,
            topology,
            self._play,
            faults=drawn if faults is None else faults,
            check=self._check,
            is_time=self._is_time,
            before_fault=self._note_fault,
            keep_trace=keep_trace,
        )
        self._tags = tags_of(self._simulation.loop)

    @property
    def num_requests(self) -> int:
        """Return how many requests are made."""
        return len(self._users)

    @property
    def homes(self) -> dict[str, str]:
        """Return the node of each actor, also of replicas that may be added."""
        return self._homes

    @property
    def began(self) -> float:
        """Return when everything was up, in virtual seconds, once it ran."""
        return self._simulation.began

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the faults so far."""
        return self._simulation.faults

    def run(self) -> Outcome:
        """Plays the seed."""
        with read_once(MODEL, VOCAB_SIZE, END_TOKENS):
            return self._simulation.run()

    def _draw_users(self, random: Random, count: int) -> list[User]:
        drawn = draw_requests(random, self._frontends, count, ARRIVE_SECONDS)
        return [
            User(wanted, self._model, self._leave, self._violations.append, self._is_excused)
            for wanted in drawn
        ]

    # The play.

    async def _play(self, simulation: Simulation) -> None:
        loop, operator = simulation.loop, self._operator
        self._come(self._users)
        if operator is not None:
            operator.begin(simulation)
        if self._spoiler is not None:
            self._spoiler.begin(simulation)
        await asyncio.sleep(FAULT_SECONDS + 2 * MOMENT_SECONDS_MAX)
        if operator is not None:
            await operator.finish(simulation)
        await self._until_all_ended(loop.time() + END_SECONDS_MAX)
        while simulation.trace.deliveries < self._deliveries_min:
            more = self._draw_users(self._random, MORE_REQUESTS)
            self._users += more
            self._come(more)
            await self._until_all_ended(loop.time() + END_SECONDS_MAX)
        await self._until_at_rest(loop.time() + REST_SECONDS_MAX)
        self._count_ends()

    def _come(self, users: list[User]) -> None:
        loop = self._simulation.loop
        for user in users:
            loop.call_at(loop.time() + user.wanted.at, self._open, user)

    def _open(self, user: User) -> None:
        """Hands a request to its frontend, or waits until there is one."""
        simulation = self._simulation
        cell = simulation.cell(user.wanted.frontend)
        if cell is None or not cell.serving:
            simulation.loop.call_later(POLL_SECONDS, self._open, user)
            return
        frontend = cell.actor
        assert isinstance(frontend, Frontend)
        deaths = self._inspection.executor_deaths(simulation)
        user.incarnation, user.executor_deaths = cell.incarnation, deaths
        simulation.loop.call_soon(frontend.open, user.opening(), context=simulation.context_of(cell))

    def _leave(self, user: User) -> None:
        """A user leaves; where nothing goes wrong meanwhile, the scheduler knows before long."""
        loop, name = self._simulation.loop, user.wanted.name
        cell = self._simulation.cell(user.wanted.frontend)
        if cell is not None and isinstance(cell.actor, Frontend):
            self.counters["aborts"] += 1
            wire_ids = {(cell.name, one) for one in cell.actor.wire_ids(name)}
            loop.call_soon(self._abort, user, cell.actor)
            if self._is_calm():
                schedulers = [*self._inspection.schedulers(self._simulation)]
                loop.call_later(ABORT_SECONDS, self._check_left, wire_ids, schedulers, context=Context())

    def _abort(self, user: User, frontend: Frontend) -> None:
        frontend.abort_all([user.wanted.name])
        user.left = True

    def _is_calm(self) -> bool:
        """Tell whether no fault is felt, and no replica comes or goes."""
        if self._operator is not None and self._operator.is_busy:
            self._disturbed_until = self._simulation.loop.time() + SETTLE_SECONDS
        return self._simulation.loop.time() > self._disturbed_until

    def _check_left(self, wire_ids: set[tuple[str, str]], schedulers: list[Cell]) -> None:
        if self._is_calm() and schedulers == [*self._inspection.schedulers(self._simulation)]:
            requests = self._inspection.requests(self._simulation)
            kept = sorted(wire_ids & {(one.frontend, one.request_id) for one in requests})
            if kept:
                text = f"{kept} are scheduled {ABORT_SECONDS} s after their user left"
                self._violations.append(Violation(text))
            self.counters["aborts checked"] += 1

    def _is_void(self, user: User) -> bool:
        """Tell whether its frontend died with it."""
        cell = self._simulation.cell(user.wanted.frontend)
        return cell is None or cell.incarnation != user.incarnation

    async def _until_all_ended(self, latest: float) -> None:
        while left := [user for user in self._users if not user.incarnation or not self._is_over(user)]:
            if self._simulation.loop.time() > latest:
                names = ", ".join(user.wanted.name for user in left)
                raise Violation(f"{names} never ended")
            await asyncio.sleep(POLL_SECONDS)
        for user in self._users:
            void = self._is_void(user) and (not user.done or user.error is not None)
            if user.error is not None and not void and not user.was_late:
                raise Violation(f"{user.wanted.name} failed: {user.error!r}")

    def _count_ends(self) -> None:
        for name in self._frontends:
            cell = self._simulation.cell(name)
            if self._operator is not None and cell is not None and isinstance(cell.actor, Frontend):
                self.counters["moved"] += cell.actor._moving.num_moved
                self.counters["handed over"] += cell.actor._moving.num_handed_over
        for user in self._users:
            void = self._is_void(user) and not user.done
            self.counters["void" if void else "left" if user.left else "ended"] += 1

    def _is_excused(self, user: User, end: Finished) -> bool:
        """Tell whether a request has seen so many executors die that it may be the reason."""
        deaths = self._inspection.executor_deaths(self._simulation) - user.executor_deaths
        excused = end.cause == "failure" and "died again and again" in (end.message or "") and deaths > 2
        self.counters["taken for poison"] += excused
        return excused

    def _is_over(self, user: User) -> bool:
        return user.done or self._is_void(user)

    async def _until_at_rest(self, latest: float) -> None:
        """Wait until nothing is left of anything."""
        while left := await self._count_left():
            if self._simulation.loop.time() > latest:
                raise Violation(f"when all had ended there were left: {left}")
            await asyncio.sleep(POLL_SECONDS)

    async def _count_left(self) -> dict[str, int]:
        left, counters = await self._inspection.count_left(self._simulation)
        if self._operator is not None:
            left |= find_remains(self._simulation)
            is_calm = not self._simulation.struck
            left |= self._operator.find_misbeliefs(self._simulation, is_calm=is_calm)
        if self._spoiler is not None:
            calm = not self._simulation.struck and not self._spoiler.num_spoilt
            of_stores, counted = await left_in_stores(self._simulation, self._stores, is_calm=calm)
            left |= of_stores
            counters.update(counted)
        if not left:
            self.counters.update(counters)
        return left

    # What must hold.

    def _check(self, simulation: Simulation) -> None:
        """Check the engine after every step, and what users say, at once."""
        if self._violations:
            raise self._violations[0]
        if self._tags.wrong:
            raise Violation(self._tags.wrong[0])
        self._inspection.check(simulation)
        if self._inspection.has_strays and self._is_calm():
            latest = simulation.loop.time() - ABORT_SECONDS
            kept = self._inspection.strays(simulation, latest) if self._disturbed_until < latest else []
            if kept:
                raise Violation(f"{kept} are computed {ABORT_SECONDS} s after their frontends left them")

    # What the faults strike.

    def _scene(self) -> Scene:
        simulation, inspection = self._simulation, self._inspection
        return Scene(
            requests=lambda: inspection.requests(simulation),
            transfers=lambda: inspection.transfers(simulation),
            all_came=lambda: all(user.incarnation for user in self._users),
            is_changing=lambda: self._operator is not None and self._operator.is_busy,
            is_fetching=lambda: inspection.is_fetching(simulation, self._stores),
        )

    def _is_time(self, simulation: Simulation, fault: Fault) -> bool:
        if fault.kind == "hang" and not self._is_paced(fault.target):
            return False
        return not fault.when or WHEN[fault.when](self._scene())

    def _is_paced(self, executor: str) -> bool:
        """Tell whether it knows how long steps take. Before that it waits for ten minutes."""
        cell = self._simulation.cell(executor)
        return cell is not None and cell.actor.core.expected_seconds(1) is not None  # type: ignore[attr-defined]

    def _note_fault(self, simulation: Simulation, fault: Fault) -> None:
        """Note what the engine was at when a fault struck."""
        now = simulation.loop.time()
        self._disturbed_until = max(self._disturbed_until, now + fault.seconds + SETTLE_SECONDS)
        scene = self._scene()
        there = [moment for moment, is_there in WHEN.items() if is_there(scene)]
        for victim in victims(self._homes, fault):
            self.counters.update(f"{victim} in {moment}" for moment in there)
