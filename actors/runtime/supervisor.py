"""The root supervisor: carries out what `Supervision` decides, and sends every node the directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from pageant.actors.runtime.actor import receives
from pageant.actors.runtime.elastic import ElasticSupervisor
from pageant.actors.runtime.elastic_supervision import ElasticSupervision
from pageant.actors.runtime.growth import Growth
from pageant.actors.runtime.instructions import (
    Dismiss,
    Fence,
    GiveUp,
    Instruction,
    Launch,
    Publish,
    Start,
    Stop,
)
from pageant.actors.runtime.launcher import Launcher, Process
from pageant.actors.runtime.plans import ActorPlan
from pageant.actors.runtime.swapping import successor, successors
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest, PeerGone
from pageant.protocol.failure import printable
from pageant.protocol.recording import ActorDescription, GetActor
from pageant.protocol.supervision import (
    REMOVED,
    ActorAmended,
    ActorChanged,
    ActorFailed,
    ActorStarted,
    ActorStopped,
    AmendActor,
    DeathsCharged,
    Directory,
    GetDirectory,
    LeaseGranted,
    NodeExited,
    NodeJoined,
    Progress,
    RenewLease,
    Startup,
    StopActor,
    StopNode,
    SwapActor,
    Swapped,
    WatchStartup,
)

log = logging.getLogger("pageant.supervisor")

STANDBY_AFTER_SECONDS = 0.2  # after the start, which leaves requests that wait some time
# Time for processes to end by themselves before they are killed. The whole stop of a topology takes 5 s at most.
STOP_SECONDS = 4.0
# Time for an actor to end, after which its group does not wait for it: a node of an older version says nothing.
ACTOR_STOP_SECONDS_MAX = 20.0
EVENTS_MAX = 1024
REPLACEABLE_SECONDS, LOOK_SECONDS = 2.0, 0.02  # a swap waits so long for an actor that starts


@dataclass
class _Swap:
    """A swap that is under way: the new plan, of a group the first member's, and the error of a successor that
    failed.
    """

    outcome: asyncio.Future[Swapped]
    plan: ActorPlan
    error: str = ""


class RootSupervisor(ElasticSupervisor):
    """Runs on the root node, for as long as the topology does."""

    def __init__(
        self,
        core: ElasticSupervision,
        launcher: Launcher | None,
        on_directory: Callable[[Directory], None] | None = None,
        growth: Growth | None = None,
    ) -> None:
        super().__init__(self.Options())
        self._growth = growth
        self._on_directory = on_directory
        self.core = core
        self._launcher = launcher
        self._processes: dict[str, Process] = {}
        self._launching: set[asyncio.Task[None]] = set()
        self._swaps: dict[str, _Swap] = {}
        self._failures: dict[str, str] = {}  # each actor's last error
        self._listeners: list[asyncio.Queue[Startup]] = []
        self._outcome: Startup | None = None
        self._wake = asyncio.Event()
        self._stopping = False

    async def on_start(self) -> None:
        self.spawn(self._restart_when_due())
        await self._carry_out(self.core.begin(self.clock.now()))
        self._announce_if_ready()

    # What the nodes report.

    @receives
    async def node_joined(self, event: NodeJoined) -> None:
        now = self.clock.now()
        instructions = self.core.node_joined(
            event.node, event.incarnation, event.endpoint, now, event.pid, event.devices
        )
        self._grant_lease(event.node, event.incarnation)  # before anything starts there
        await self._carry_out(instructions)

    @receives
    async def node_exited(self, event: NodeExited) -> None:
        if not self._stopping and self.core.has_node(event.node):
            log.error("node %s#%d is gone: %s", event.node, event.incarnation, event.reason)
            await self._carry_out(
                self.core.node_exited(
                    event.node, event.incarnation, event.reason, self.clock.now(), event.traceback
                )
            )

    @receives
    def renew_lease(self, request: RenewLease) -> None:
        """Grant a node's lease. A node whose lease is over gets no answer."""
        self._grant_lease(request.node, request.incarnation, request.number, request.taken)

    def _grant_lease(self, node: str, incarnation: int, number: int = 0, taken: int = 0) -> None:
        seconds = self.core.renewed(node, incarnation, self.clock.now(), number, taken)
        if seconds is not None:
            heartbeat = self.core.leases.terms.heartbeat
            self.tell(f"node/{node}", LeaseGranted(number=number, seconds=seconds, heartbeat=heartbeat))

    @receives(concurrent=True)
    async def swap_actor(self, request: SwapActor) -> Swapped:
        """Replace an actor, or a group of actors. Answered when the successor is up, or the former actor again.

        One that is down is replaced as well. If the asker stops waiting, a successor that is not up yet is rolled back.
        """
        plans = await self._replaceable(request.name)
        plans = await self.offload(successors, plans, request.cls, request.options, request.folder)
        await self._replaceable(request.name)
        outcome: asyncio.Future[Swapped] = asyncio.get_running_loop().create_future()
        self._swaps[plans[0].name] = _Swap(outcome, plans[0])
        await self._carry_out(self.core.swap(*plans))
        try:
            return await outcome
        except asyncio.CancelledError:
            if not self._stopping:
                self.spawn(self._carry_out(self.core.roll_back(request.name, "it was not up in time")))
            raise

    async def _replaceable(self, name: str) -> list[ActorPlan]:
        """Return the plans of an actor's group once it is up, or down; others may need a moment to get there."""
        if self.core.planned(name) is None:
            known = expected(name, self.core.actor_names)
            raise BadRequest(f"there is no actor {name!r:.100}; {known}", "name")
        until = self.clock.now() + REPLACEABLE_SECONDS
        while not (plans := self.core.plans_of(name) or self.core.plans_of_down(name)):
            if self.clock.now() >= until:
                raise PeerGone(f"{name} is starting or being swapped, and cannot be swapped now")
            await asyncio.sleep(LOOK_SECONDS)
        return plans

    def _swap_ended(self, name: str, incarnation: int) -> None:
        swap, present = self._swaps.pop(name, None), self.core.plan_of(name)
        if swap is None or swap.outcome.done():
            return
        is_successor = present is None or (present.cls, present.options) == (swap.plan.cls, swap.plan.options)
        died = not swap.error and not is_successor
        error = f"{swap.plan.cls} ended its process while it started" if died else swap.error
        swap.outcome.set_result(Swapped(incarnation=incarnation, error=error, died=died))

    @receives
    async def actor_started(self, event: ActorStarted) -> None:
        await self._carry_out(
            self.core.actor_started(
                event.name, event.incarnation, event.features, self.clock.now(), event.facts
            )
        )
        self._swap_ended(event.name, event.incarnation)
        self._announce_if_ready()
        if self._launcher is not None and self.core.all_up():
            self.spawn(self._prepare(self._launcher))

    @receives
    async def actor_changed(self, event: ActorChanged) -> None:
        await self._carry_out(self.core.actor_changed(event.address, event.incarnation, event.facts))

    @receives
    async def amend_actor(self, request: AmendActor) -> ActorAmended:
        """Change the options of an actor's next life."""
        plan = self.core.planned(request.name)
        if plan is None:
            raise BadRequest(f"there is no actor {request.name!r} to amend", "name")
        await self.offload(successor, plan, "", request.options)  # it may import the actor's module
        plan = self.core.amend(request.name, lambda present: successor(present, "", request.options))
        return ActorAmended(options=plan.options.decode())

    @receives
    async def actor_failed(self, event: ActorFailed) -> None:
        # Another member of its group may have died first: that is the cause, and this a consequence.
        is_cause = self.core.is_alive(event.name, event.incarnation)
        swap = self._swaps.get(self.core.first_of(event.name))
        if swap is not None and is_cause:
            swap.error = swap.error or event.error
        when = "after it had started" if event.started else "while starting"
        # A failure during the start reaches the user as an exception, and need not be logged as an error, too.
        has_started = self._outcome is not None and not self._outcome.error
        is_news = self._failures.get(event.name) != event.error
        self._failures[event.name] = event.error
        is_error = has_started and is_news and is_cause and not self._stopping
        level = logging.ERROR if is_error else logging.INFO
        log.log(level, "%s#%d failed %s: %s", event.name, event.incarnation, when, event.error)
        await self._carry_out(
            self.core.actor_failed(
                event.name,
                event.incarnation,
                event.error,
                event.traceback,
                self.clock.now(),
                permanent=event.permanent,
                ends_process=event.ends_process,
            )
        )

    @receives
    async def actor_stopped(self, event: ActorStopped) -> None:
        await self._carry_out(self.core.actor_stopped(event.name, event.incarnation))

    @receives
    def deaths_charged(self, event: DeathsCharged) -> None:
        """Take deaths that requests are charged with off the actor's own."""
        self.core.charged(event.name, event.deaths)

    @receives
    def progress(self, event: Progress) -> None:
        self._announce(Startup(progress=event))

    @receives
    def directory(self, request: GetDirectory) -> Directory:
        return self.core.directory()

    @receives
    def describe(self, request: GetActor) -> ActorDescription:
        plan = self.core.planned(request.name)
        if plan is None:
            return ActorDescription()
        return ActorDescription(cls=plan.cls, options=plan.options.decode())

    @receives(concurrent=True)
    async def watch_startup(self, request: WatchStartup) -> AsyncIterator[Startup]:
        """Stream progress, then the outcome; the outcome alone if it is known."""
        events: asyncio.Queue[Startup] = asyncio.Queue(EVENTS_MAX)
        if self._outcome is not None:
            yield self._outcome
            return
        self._listeners.append(events)
        try:
            while True:
                event = await events.get()
                yield event
                if event.ready or event.error:
                    return
        finally:
            self._listeners.remove(events)

    # What is done about it.

    async def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if self._stopping:
                return
            match instruction:
                case Launch(node, incarnation):
                    self.spawn(self._launch(node, incarnation))  # which may take its time
                case Start(node, order):
                    self.tell(f"node/{node}", order)
                case Stop(node, name, life, reason):
                    self.tell(f"node/{node}", StopActor(name=name, incarnation=life, reason=reason))
                    self.spawn(self._give_up_waiting(name, life))
                case Dismiss(node):
                    self.tell(f"node/{node}", StopNode(reason=REMOVED))
                    if (process := self._processes.pop(node, None)) is not None:
                        self.spawn(self._end(node, process, STOP_SECONDS))
                case Publish():
                    directory = self.core.directory()
                    if self._on_directory is not None:
                        self._on_directory(directory)
                    for node in self.core.nodes_up():
                        self.tell(f"node/{node}", directory)
                case Fence(node, incarnation, reason):
                    log.error("node %s#%d is killed: %s", node, incarnation, reason)
                    if (process := self._processes.get(node)) is not None:
                        self.spawn(self._end(node, process))
                case GiveUp():
                    self._give_up(instruction)
        self._wake.set()

    async def _give_up_waiting(self, name: str, incarnation: int) -> None:
        """Take a life for over of whose end no word comes."""
        await asyncio.sleep(ACTOR_STOP_SECONDS_MAX)
        await self._carry_out(self.core.actor_stopped(name, incarnation))

    async def _launch(self, node: str, incarnation: int) -> None:
        assert self._launcher is not None, f"{node} is a process of its own, but nothing launches processes"
        task = asyncio.current_task()
        assert task is not None
        self._launching.add(task)
        try:
            if not self._stopping:
                await self._launch_with(self._launcher, node, incarnation)
        finally:
            self._launching.discard(task)

    async def _launch_with(self, launcher: Launcher, node: str, incarnation: int) -> None:
        try:
            process = await launcher.launch(node, incarnation)
        except Exception as error:  # a launcher may be anybody's
            reason = f"its process could not be started: {error!r}"
            self.tell("supervisor", NodeExited(node=node, incarnation=incarnation, reason=reason))
            return
        self._processes[node] = process
        self.core.launched(node, incarnation, self.clock.now())
        if self._stopping:  # meanwhile
            process.close_input()
            await self._end(node, process, STOP_SECONDS)
            return
        self.spawn(self._await_exit(node, incarnation, process))

    async def _prepare(self, launcher: Launcher) -> None:
        await asyncio.sleep(STANDBY_AFTER_SECONDS)
        await launcher.prepare(len(self._processes), self.core.modules())

    async def _await_exit(self, node: str, incarnation: int, process: Process) -> None:
        try:
            reason, _, trace = (await process.wait()).partition("\n")
        except Exception as error:
            reason, trace = f"its launcher does not know how it is: {error!r}", ""
            await self._end(node, process)
        exited = NodeExited(node=node, incarnation=incarnation, reason=reason, traceback=printable(trace))
        self.tell("supervisor", exited)

    async def _end(self, node: str, process: Process, seconds: float = 0.0) -> None:
        try:
            await process.end(seconds)
        except Exception as error:
            log.error("the process of node %s could not be ended: %r", node, error)

    def _give_up(self, end: GiveUp) -> None:
        if self._outcome is None:
            times = f" {end.deaths} times" if end.deaths > 1 else ""
            error = f"{end.who} failed{times} while starting: {end.error}"
            self._announce(Startup(error=error, traceback=end.traceback))
        elif not self._outcome.error:
            message = "%s is given up after %d early deaths in a row; the last: %s\n%s"
            log.critical(message, end.who, end.deaths, end.error, end.traceback)

    def _announce_if_ready(self) -> None:
        if self._outcome is None and self.core.all_up():
            self._announce(Startup(ready=True))

    def _announce(self, event: Startup) -> None:
        if event.ready or event.error:
            self._outcome = event
        for events in self._listeners:
            if not events.full() or event.ready or event.error:
                if events.full():
                    events.get_nowait()  # progress may be missed, the outcome may not
                events.put_nowait(event)

    async def _restart_when_due(self) -> None:
        while True:
            self._wake.clear()
            due = self.core.wake_at()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                await self._carry_out(self.core.tick(self.clock.now()))

    async def stop_nodes(self) -> None:
        """End every node process: told first, killed after `STOP_SECONDS`."""
        self._stopping = True
        for node in self.core.nodes_up():
            if node != self.core.root:
                self.tell(f"node/{node}", StopNode(reason="the topology stops"))
        for process in self._processes.values():
            # A process that has not joined yet learns of the end from its standard input.
            process.close_input()
        if self._launcher is not None:
            await self._launcher.close()
        # A launch that is under way ends its own process.
        if self._launching:
            await asyncio.wait(self._launching, timeout=2 * STOP_SECONDS)
        await asyncio.gather(*(self._end(*one, STOP_SECONDS) for one in self._processes.items()))
