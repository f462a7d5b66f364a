"""A run of a topology in simulated time, with the real actors, nodes, agents and supervisor.

The clock jumps, the network delays and loses, and processes are killed, all as the seed says.

    outcome = Simulation(seed=7, topology=resolved, play=my_scenario, faults=faults).run()
    assert outcome.violation is None, outcome

The same seed and faults give the same run, to the last delivery: `outcome.digest` shows it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pageant.actors.runtime.cell import Cell
from pageant.actors.runtime.cluster import Cluster
from pageant.actors.runtime.instructions import Instruction
from pageant.actors.runtime.lives import RestartLimits
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.resolving import Resolved
from pageant.actors.runtime.simulation.faults import Fault, Kind
from pageant.actors.runtime.simulation.loop import Stuck, VirtualLoop
from pageant.actors.runtime.simulation.network import NOT_KNOWN, Network, Trace
from pageant.actors.runtime.simulation.processes import SimulatedPlatform, SimulatedProcess

START_SECONDS_MAX = 120.0
ROUNDS_OF_ENDS = 5
STOP_SECONDS_MAX = 60.0
# Faults are more frequent than in reality: the number of deaths ends no restarts.
LIMITS = RestartLimits(early_deaths_max=1_000_000, failed_starts_max=1_000_000)


# Interval at which a fault checks whether its moment has come.
POLL_SECONDS = 0.004
# The longest wait of a fault for its moment, and then for something to strike.
MOMENT_SECONDS_MAX = 0.7
# Exceptions that actors may die of once a fault of that kind has struck. Anything else is a bug.
DEATHS: dict[Kind, tuple[str, ...]] = {
    "crash": ("SimulatedCrash",),
    "break": ("PlanMismatch", "PeerGone"),  # a stream that has a hole
    "hang": ("StepHung",),
    "stop": ("StepHung",),
}


class Violation(AssertionError):
    """An invariant was broken."""


class SimulatedCrash(RuntimeError):
    """The exception of a handler that a fault crashed."""


@dataclass
class Outcome:
    """The outcome of a run."""

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
        play: plays the users, once everything is up. It raises `Violation`, or any `AssertionError`.
        faults: see `faults.draw_faults`.
        check: called after every callback; raises as `play` does.
        is_time: tells whether the moment has come that a fault waits for (`Fault.when`). After a while it is asked
            without a moment.
        before_fault: called with each fault just before it strikes.
        latency, offload_seconds: draw the seconds that an envelope is on its way, and that a blocking function
            takes.
        deaths: classes of exceptions that actors may die of once a fault of that kind has struck.
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
        is_time: Callable[[Simulation, Fault], bool] | None = None,
        before_fault: Callable[[Simulation, Fault], None] | None = None,
        latency: Callable[[Random], float] = lambda random: random.uniform(0.0001, 0.002),
        offload_seconds: Callable[[Random], float] = lambda random: random.uniform(0.0005, 0.02),
        limits: RestartLimits = LIMITS,
        deaths: Mapping[Kind, tuple[str, ...]] = DEATHS,
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
        # When everything was up, in virtual seconds: times of faults count from there.
        self.began = 0.0
        self._play, self._check, self._before_fault, self._limits = play, check, before_fault, limits
        self._is_time = is_time or (lambda simulation, fault: True)
        self._deaths = deaths
        self._crash: Violation | None = None
        self._caught = _CaughtExceptions()
        self._quiet = False
        # The cells that were found last, by actor, and the processes that they were found in; None is the root.
        self._cells: dict[str, tuple[Cell, SimulatedProcess | None]] = {}

    def run(self) -> Outcome:
        """Run to the end. Never raises for what the topology does."""
        outcome = Outcome(self.seed, faults=list(self.faults), struck=self.struck)
        with self._caught.instead_of_other_handlers():
            try:
                self.loop.run(self._run())
            except (AssertionError, Stuck, TimeoutError) as error:
                outcome.violation = _shown(error)
            finally:
                self.loop.after_callback = None
                self._end_everything()
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
        began = self.began = self.loop.time()
        for fault in self.faults:
            self.loop.call_at(began + fault.at, self._strike, fault, began + fault.at + MOMENT_SECONDS_MAX)
        await self._play(self)
        self._quiet = True
        self._raise_errors()
        self.loop.after_callback = None
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await self.cluster.stop()
        self._raise_errors()

    def _watch_crashes(self) -> None:
        """Record a violation when an actor dies of an exception that no fault explains."""
        core = self.cluster.supervision
        report = core.actor_failed

        def noted(
            name: str, incarnation: int, error: str, trace: str, now: float, **how: bool
        ) -> list[Instruction]:
            allowed = [death for kind in self._deaths if self.struck[kind] for death in self._deaths[kind]]
            if name not in core.names():  # it began while its replica was removed
                allowed += ["NoSuchActor", "PeerGone"]
            if not error.startswith(tuple(allowed)):
                self._crash = Violation(f"{name}#{incarnation} died of {error}\n{trace}")
            return report(name, incarnation, error, trace, now, **how)

        core.actor_failed = noted  # type: ignore[method-assign,assignment]

    def _checked(self) -> None:
        if self._crash is not None:
            raise self._crash
        if self._caught.texts:
            raise Violation(self._caught.texts[0])
        if self._check is not None:
            self._check(self)

    def _raise_errors(self) -> None:
        """Raise errors that only asyncio knows of, and messages of this version that could not be read."""
        nodes = [self.cluster.node, *(life.node for life in self.platform.lives if life.node is not None)]
        for node in nodes:
            refusal = node.remote.last_refusal
            if refusal and NOT_KNOWN not in refusal:
                raise Violation(f"{node.name} could not read what came {refusal}")
        for context in self.loop.errors:
            error = context.get("exception")
            raise Violation(f"{context.get('message')}: {error!r}") from error

    def _end_everything(self) -> None:
        """End the tasks that dead processes left behind, silently, so that none is reported later."""
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
            # The outcome has the violation already.
            with suppress(Stuck):
                self.loop.run(_wait(left))
        self.loop.close()

    # What goes wrong.

    def _strike(self, fault: Fault, latest: float) -> None:
        """Strike once the fault's moment has come and there is something to strike, if that is before long."""
        now = self.loop.time()
        if self._quiet or now > latest + MOMENT_SECONDS_MAX:
            return
        wanted = fault if now < latest else replace(fault, when="")
        blow = self._aim(fault) if self._is_time(self, wanted) else None
        if blow is None:
            self.loop.call_later(POLL_SECONDS, self._strike, fault, latest)
            return
        if self._before_fault is not None:
            self._before_fault(self, fault)
        self.trace.note(now, str(fault))
        self.struck[fault.kind] += 1
        blow()

    def _aim(self, fault: Fault) -> Callable[[], object] | None:
        """Return the function that causes a fault; None while there is nothing to strike."""
        network, target, other, seconds = self.network, fault.target, fault.other, fault.seconds
        match fault.kind:
            case "kill" | "host":
                hit = [process for name in target.split(",") if (process := self._process(name)) is not None]
                return (lambda: list(map(SimulatedProcess.kill, hit))) if hit else None
            case "stop":
                process = self._process(target)
                return None if process is None else lambda: self._stop(process, seconds)
            case "crash":
                cell = self.cell(target)
                return None if cell is None else lambda: cell.crash(SimulatedCrash("as the seed says"))
            case "hang":
                return None if self.cell(target) is None else self.platform.hang(target)
            case "slow":
                return network.slow_down(target, seconds)
            case "clog":
                return network.clog(target, other, seconds)
            case "cut":
                return network.cut(target, other, seconds)
            case "split":
                return network.cut(target, other, seconds, back=True)
            case "break":
                return network.break_connection(target, other, seconds)

    def _process(self, name: str) -> SimulatedProcess | None:
        """Return a node's process that is alive and not stopped, or None."""
        process = self.platform.processes.get(name)
        return None if process is None or process.dead or process.stopped else process

    def _stop(self, process: SimulatedProcess, seconds: float) -> None:
        process.stopped = True
        self.loop.call_later(seconds, self.loop.resume, process)

    # Looking in.

    def nodes(self) -> list[Node]:
        """Return the nodes that live."""
        inside = [process.node for process in self.platform.processes.values() if not process.dead]
        return [self.cluster.node, *(node for node in inside if node is not None)]

    def context_of(self, cell: Cell) -> Context:
        """Return the context of an actor's process: what runs in it dies with the process."""
        link = self.network.life_of(cell.node.name)
        assert link is not None, f"{cell.name} lives on a node that does not"
        return link.context

    def cell(self, actor: str) -> Cell | None:
        """Return the cell of an actor that lives, on whichever node, or None."""
        if (known := self._cells.get(actor)) is not None:
            cell, process = known
            if not cell.closed and (process is None or self._is_latest(process)):
                return cell
            del self._cells[actor]
        processes = self.platform.processes.values()
        places = ((process.node, process) for process in processes if not process.dead)
        for node, process in ((self.cluster.node, None), *places):
            found = None if node is None else node.cells.get(actor)
            if found is not None and not found.closed:
                self._cells[actor] = (found, process)
                return found
        return None

    def _is_latest(self, process: SimulatedProcess) -> bool:
        """Tell whether a process lives, and no other has taken its node over."""
        return not process.dead and self.platform.processes.get(process.node_name) is process


class _CaughtExceptions(logging.Handler):
    """Collects exceptions that were caught and logged with a traceback: they are bugs. Logged deaths are not
    collected.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.texts.append(logging.Formatter().format(record))

    @contextmanager
    def instead_of_other_handlers(self) -> Iterator[None]:
        """Replace the package's log handlers for as long as the context lasts."""
        logger = logging.getLogger("pageant")
        kept = logger.handlers, logger.propagate, logger.level
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.handlers, logger.propagate = kept[:2]
            logger.setLevel(kept[2])


async def _wait(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)


def _shown(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {last.name}:{last.lineno}: {error}"
