"""One run of a topology in simulated time: the real actors, nodes, agents and supervisor; a clock that jumps, a
network that delays and loses, processes that are killed, all as the seed says.

    outcome = Simulation(seed=7, topology=resolved, play=my_scenario, faults=faults).run()
    assert outcome.violation is None, outcome

The same seed and faults give the same run, to the last delivery: `outcome.digest` tells.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.restarts import Instruction, RestartLimits
from pageant.actors.runtime.simulation.faults import Fault
from pageant.actors.runtime.simulation.loop import Stuck, VirtualLoop
from pageant.actors.runtime.simulation.network import Network, Trace
from pageant.actors.runtime.simulation.processes import SimulatedPlatform
from pageant.actors.runtime.topology import Resolved

START_SECONDS_MAX = 120.0
ROUNDS_OF_ENDS = 5
STOP_SECONDS_MAX = 60.0
# Faults come thicker than in the world: nothing is given up because of how often it was hit.
LIMITS = RestartLimits(early_deaths_max=1_000_000, failed_starts_max=1_000_000)


# Of what actors die that is no bug: the crash that a fault is; a plan that never came; a node that stops.
DEATHS_ALLOWED = ("SimulatedCrash", "PlanMismatch", "PeerGone")


class Violation(AssertionError):
    """Something that must never happen did."""


class SimulatedCrash(RuntimeError):
    """What a handler raised, as far as its supervisor knows."""


@dataclass
class Outcome:
    """How a run went."""

    seed: int
    digest: str = ""
    deliveries: int = 0
    seconds: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    violation: str | None = None
    trace: list[str] | None = None

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.violation or 'no violation'}"]
        lines += [f"  {fault}" for fault in self.faults]
        return "\n".join(lines)


class Simulation:
    """A run to be.

    Args:
        topology: see `runtime.topology.resolve`.
        play: what users do, once everything is up. It raises `Violation`, or any `AssertionError`.
        faults: see `faults.draw_faults`.
        check: called after every callback; raises as `play` does.
        before_fault: told of each fault just before it strikes.
        latency, offload_seconds: draw how long an envelope is on its way, and how long a blocking function takes.
        deaths_allowed: classes of exceptions that actors may die of.
        keep_trace: keep every delivery as a line.
    """

    def __init__(
        self,
        seed: int,
        topology: Resolved,
        play: Callable[[Simulation], Awaitable[None]],
        *,
        faults: Sequence[Fault] = (),
        check: Callable[[Simulation], None] | None = None,
        before_fault: Callable[[Simulation, Fault], None] | None = None,
        latency: Callable[[Random], float] = lambda random: random.uniform(0.0001, 0.002),
        offload_seconds: Callable[[Random], float] = lambda random: random.uniform(0.0005, 0.02),
        limits: RestartLimits = LIMITS,
        deaths_allowed: tuple[str, ...] = DEATHS_ALLOWED,
        keep_trace: bool = False,
    ) -> None:
        self.seed, self.topology, self.faults = seed, topology, tuple(faults)
        self.random = Random(f"play {seed}")
        self.loop = VirtualLoop()
        self.network = Network(self.loop, Random(f"network {seed}"), latency)
        self.network.trace = self.trace = Trace(keep_trace)
        self.platform = SimulatedPlatform(
            self.loop, self.network, Random(f"platform {seed}"), offload_seconds
        )
        self.struck: Counter[str] = Counter()
        self.cluster: Cluster
        self._play, self._check, self._before_fault, self._limits = play, check, before_fault, limits
        self._deaths_allowed = deaths_allowed
        self._crash: Violation | None = None
        self._quiet = False

    def run(self) -> Outcome:
        """Plays it to its end. Never raises for what the topology does."""
        level = logging.getLogger("pageant").level
        logging.getLogger("pageant").setLevel(logging.CRITICAL + 1)  # deaths are no news here
        outcome = Outcome(self.seed, faults=list(self.faults), struck=self.struck)
        try:
            self.loop.run(self._run())
        except (AssertionError, Stuck, TimeoutError) as error:
            outcome.violation = _shown(error)
        finally:
            self.loop.after_callback = None
            self._end_everything()
            logging.getLogger("pageant").setLevel(level)
        outcome.digest, outcome.deliveries = self.trace.digest, self.trace.deliveries
        outcome.seconds, outcome.trace = self.loop.time(), self.trace.lines
        return outcome

    async def _run(self) -> None:
        self.cluster = Cluster(self.topology, self._limits, platform=self.platform)
        async with asyncio.timeout(START_SECONDS_MAX):
            await self.cluster.start()
            self._watch_crashes()
            async for _ in self.cluster.startup():
                pass
        self.loop.after_callback = self._checked
        began = self.loop.time()
        for fault in self.faults:
            self.loop.call_at(began + fault.at, self._strike, fault)
        await self._play(self)
        self._quiet = True
        self._raise_errors()
        self.loop.after_callback = None
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await self.cluster.stop()
        self._raise_errors()

    def _watch_crashes(self) -> None:
        """An actor that dies of anything but what was meant for it is at fault."""
        core = self.cluster.supervision
        report = core.actor_failed

        def noted(name: str, incarnation: int, error: str, trace: str, now: float) -> list[Instruction]:
            if not error.startswith(self._deaths_allowed):
                self._crash = Violation(f"{name}#{incarnation} died of {error}\n{trace}")
            return report(name, incarnation, error, trace, now)

        core.actor_failed = noted  # type: ignore[method-assign,assignment]

    def _checked(self) -> None:
        if self._crash is not None:
            raise self._crash
        if self._check is not None:
            self._check(self)

    def _raise_errors(self) -> None:
        """What asyncio was told and nobody else."""
        for context in self.loop.errors:
            error = context.get("exception")
            raise Violation(f"{context.get('message')}: {error!r}") from error

    def _end_everything(self) -> None:
        """Lets the tasks end that the dead left behind, unheard, so that nothing is said of them later."""
        self.network.close()
        for _ in range(ROUNDS_OF_ENDS):
            left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            for process in self.platform.lives:
                process.dead = False
                self.loop.resume(process)
            self.loop.run(_wait(left))
        self.loop.close()

    # What goes wrong.

    def _strike(self, fault: Fault) -> None:
        if self._quiet:
            return
        if self._before_fault is not None:
            self._before_fault(self, fault)
        self.trace.note(self.loop.time(), str(fault))
        if self._hits(fault):
            self.struck[fault.kind] += 1

    def _hits(self, fault: Fault) -> bool:
        """Whether there was anything to strike."""
        processes = self.platform.processes
        match fault.kind:
            case "kill" | "host":
                hit = [
                    name for name in fault.target.split(",") if name in processes and not processes[name].dead
                ]
                for name in hit:
                    processes[name].kill()
                return bool(hit)
            case "stop":
                process = processes.get(fault.target)
                if process is None or process.dead or process.stopped:
                    return False
                process.stopped = True
                self.loop.call_later(fault.seconds, self.loop.resume, process)
                return True
            case "crash":
                cell = self.cell(fault.target)
                if cell is not None:
                    cell.crash(SimulatedCrash("as the seed says"))
                return cell is not None
            case "clog":
                return self.network.clog(fault.target, fault.other, fault.seconds)
            case "cut":
                there = self.network.clog(fault.target, fault.other, fault.seconds)
                return self.network.clog(fault.other, fault.target, fault.seconds) and there
            case "break":
                return self.network.break_connection(fault.target, fault.other, fault.seconds)

    # Looking in.

    def nodes(self) -> list[Node]:
        """Those that live."""
        inside = [process.node for process in self.platform.processes.values() if not process.dead]
        return [self.cluster.node, *(node for node in inside if node is not None)]

    def context_of(self, cell: Cell) -> Context:
        """For what users do in the process of an actor, and what dies with it."""
        link = self.network.life_of(cell.node.name)
        assert link is not None, f"{cell.name} lives on a node that does not"
        return link.context

    def cell(self, actor: str) -> Cell | None:
        """An actor that lives, wherever it does."""
        for node in self.nodes():
            cell = node.cells.get(actor)
            if cell is not None and not cell.closed:
                return cell
        return None


async def _wait(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)


def _shown(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {last.name}:{last.lineno}: {error}"
