"""A running topology, as seen by the process that started it: the root node with its supervisor.

Everything here runs on the loop of the root node. `loop_thread` gives that loop a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial

from pageant.actors.runtime.address import AGENT, SUPERVISOR
from pageant.actors.runtime.agent import NodeAgent
from pageant.actors.runtime.elastic_supervision import ElasticSupervision
from pageant.actors.runtime.growth import Growth, needs_of
from pageant.actors.runtime.launcher import Joining, LauncherByNode
from pageant.actors.runtime.lives import RestartLimits
from pageant.actors.runtime.logs import current_form
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.platform import Link, Machine, Platform
from pageant.actors.runtime.resolving import Resolved
from pageant.actors.runtime.roster import Roster
from pageant.actors.runtime.supervisor import RootSupervisor
from pageant.actors.runtime.transport.errors import LinkRefused
from pageant.protocol.errors import PeerGone, StartupError, TopologyError
from pageant.protocol.supervision import GetStatistics, NodeStatistics, Progress, Startup, WatchStartup

log = logging.getLogger("pageant.cluster")

# The longest time without any progress of the start.
STARTUP_SECONDS_MAX = 3600.0
# Time after which a start that waits for nodes to join logs their names.
NOTICE_SECONDS = 2.0


class Cluster:
    """The nodes and actors of one topology.

    Args:
        stop_order: actors that end first when the root node stops.
        platform: the clock, threads and sockets to use; None is this host.
        name: the name in `pageant ps`; without one, it is not listed.
    """

    def __init__(
        self,
        topology: Resolved,
        limits: RestartLimits | None = None,
        stop_order: tuple[str, ...] = (),
        platform: Platform | None = None,
        name: str = "",
    ) -> None:
        self.topology = topology
        self._name = name
        self._roster: Roster | None = None
        self.node = Node(
            topology.root,
            seed=topology.seed,
            wire_always=topology.wire == "always",
            platform=platform or Machine(topology.keys),
        )
        self._limits = limits
        self._stop_order = stop_order
        self._folder: str | None = None
        self._link: Link | None = None
        self._supervisor: RootSupervisor | None = None
        self._stopped: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the root node and everything else. `startup` reports the progress.

        Raises:
            TopologyError: the root cannot listen at its address. `stop` must be called even then.
        """
        topology = self.topology
        others = topology.listen is not None or any(node.process or node.joins for node in topology.nodes)
        launchers = self._listen() if others else None
        endpoint = self._link.endpoint if self._link is not None else ""
        core = ElasticSupervision(
            *(topology.root, endpoint, topology.nodes, topology.actors, self._limits, topology.lease),
            pid=self.node.platform.pid,
        )
        if self._link is not None:
            clock = self.node.clock
            self._link.issue = lambda node, gone: core.issue(node, clock.now(), gone=gone)
            self.node.remote.connect(self._link, topology.root)
        self.node.on_agent_crash = self._end
        self._enlist(endpoint)
        growth = None if topology.grow is None else Growth(topology, launchers)
        written = self._roster.write if self._roster else None
        self._supervisor = RootSupervisor(core, launchers, written, growth)
        collect = gc.collect if isinstance(self.node.platform, Machine) else None
        await self.node.add(AGENT + topology.root, 1, NodeAgent(self.node, collect=collect)).start()
        await self.node.add(SUPERVISOR, 1, self._supervisor).start()

    def _enlist(self, endpoint: str) -> None:
        """List this topology in `pageant ps`. Nothing depends on that."""
        if self._name:
            try:
                self._roster = Roster(self._name, self.topology.placement, endpoint, self.node.clock.wall())
            except (OSError, TopologyError) as error:
                log.warning("pageant ps will not list this topology: %s", error)

    def _listen(self) -> LauncherByNode:
        """Open the root's socket, and make the launcher of processes that join it."""
        topology = self.topology
        platform = self.node.platform
        endpoint = "tcp://127.0.0.1:*"
        if topology.transport == "ipc":
            self._folder = tempfile.mkdtemp(prefix="pageant-")  # readable by this user only
            endpoint = f"ipc://{self._folder}/{{name}}-{{incarnation}}.sock"
        own = topology.listen or endpoint.format(name="root", incarnation=1)
        try:
            self._link = platform.open_link(topology.root, 1, own, self.node.remote)
        except LinkRefused as error:
            raise TopologyError("listen", str(error)) from None
        arguments = [
            "--seed",
            str(topology.seed),
            "--log-level",
            str(log.getEffectiveLevel()),
            "--log-format",
            current_form(),
        ]
        if topology.wire == "always":
            arguments.append("--wire-always")
        if topology.keys is not None:
            arguments += ["--keys", topology.keys]
        joining = Joining(self._link.endpoint, endpoint, tuple(arguments))
        launchers = LauncherByNode(platform.launcher(joining), partial(platform.launcher, joining))
        for node in topology.nodes:
            if node.launcher is not None:
                launchers.add(node.name, node.launcher, needs_of(node, topology.actors))
        return launchers

    @property
    def endpoint(self) -> str | None:
        """Return the address where other nodes join, or None if none do."""
        return self._link.endpoint if self._link is not None else None

    @property
    def supervision(self) -> ElasticSupervision:
        """Return the supervisor's core: which actors live and why others do not. Use on this loop only."""
        assert self._supervisor is not None, "the cluster has not been started"
        return self._supervisor.core

    async def startup(self) -> AsyncIterator[Progress]:
        """Yield progress until everything is up.

        Raises:
            StartupError: an actor could not be started; the error's notes have its traceback.
        """
        events: AsyncIterator[Startup] = self.node.stream(SUPERVISOR, WatchStartup(), STARTUP_SECONDS_MAX)
        notice = asyncio.create_task(self._log_missing_nodes())
        try:
            async for event in events:
                if event.error:
                    raise _startup_error(event)
                if event.progress is not None:
                    yield event.progress
        finally:
            notice.cancel()

    async def _log_missing_nodes(self) -> None:
        """Log the nodes that the start waits for, if they are to be started elsewhere."""
        await asyncio.sleep(NOTICE_SECONDS)
        up = self.supervision.nodes_up()
        for name in (node.name for node in self.topology.nodes if node.joins and node.name not in up):
            log.warning("waiting for node %s: pageant node --join %s --name %s", name, self.endpoint, name)

    async def statistics(self) -> list[NodeStatistics]:
        """Return the counters of every node that is up. A node that ends meanwhile is left out."""
        assert self._supervisor is not None
        found: list[NodeStatistics] = []
        for name in self._supervisor.core.nodes_up():
            with contextlib.suppress(PeerGone):
                found.append(await self.node.ask(f"{AGENT}{name}", GetStatistics(), 10.0))
        return found

    async def stop(self) -> None:
        """End every process and actor. Leaves no task, socket, process or file.

        May be called by anyone and any number of times: it is done once, to its end.
        """
        await asyncio.shield(self._stopping())

    def _end(self, error: str) -> None:
        """Stop the topology: its supervisor or the root's agent crashed, and nothing would watch the other
        nodes any more.
        """
        self._stopping()

    def _stopping(self) -> asyncio.Task[None]:
        if self._stopped is None:
            self._stopped = self.node.loop.create_task(self._stop(), name="stop of a cluster")
        return self._stopped

    async def _stop(self) -> None:
        try:
            if self._supervisor is not None:
                await self._supervisor.stop_nodes()
        finally:
            await self._stop_root()

    async def _stop_root(self) -> None:
        try:
            await self.node.stop(self._stop_order)
        finally:
            if self._link is not None:
                self._link.close()
            if self._roster is not None:
                self._roster.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


def _startup_error(event: Startup) -> StartupError:
    """Return the error of a start that failed: one line, with the traceback as a note and in the log."""
    error = StartupError(event.error)
    if event.traceback:
        error.add_note(event.traceback)
        log.debug("%s\n%s", event.error, event.traceback)
    return error
