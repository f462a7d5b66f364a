"""The agent of a node: starts and stops its actors on the root supervisor's orders, and reports to it."""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

from pageant.actors.runtime.actor import Actor, receives
from pageant.actors.runtime.address import SUPERVISOR
from pageant.actors.runtime.cell import Cell, StoppedWhileStarting
from pageant.actors.runtime.classes import decode_options, load_actor_class
from pageant.actors.runtime.lease import Tenure
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.tap import Tap
from pageant.protocol.errors import ConfigurationError
from pageant.protocol.failure import printable
from pageant.protocol.recording import EndRecording, Recorded, RecordMessages
from pageant.protocol.supervision import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    Directory,
    GetStatistics,
    LeaseGranted,
    NodeStatistics,
    RenewLease,
    StartActor,
    StopActor,
    StopNode,
)

log = logging.getLogger("pageant.agent")


class NodeAgent(Actor):
    """The agent of one node, hosted as `node/NAME`.

    Args:
        node: the node that it acts for.
        on_directory: called with each new directory before it takes effect (to link new peers).
        on_stop_node: called when the node is to end.
        on_started: called when an actor is up.
        collect: frees a dead actor's memory before the next life of a `heavy` actor starts here.
    """

    def __init__(
        self,
        node: Node,
        on_directory: Callable[[Directory], Any] | None = None,
        on_stop_node: Callable[[str], None] | None = None,
        on_started: Callable[[], None] | None = None,
        collect: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(self.Options())
        self._node, self._on_directory, self._on_stop_node = node, on_directory, on_stop_node
        self._on_started, self._collect = on_started, collect
        # Set once this node is linked to every node that was there before it.
        self._linked = asyncio.Event()
        if on_directory is None:
            self._linked.set()
        self._tenure = Tenure(node.clock.now())
        # The latest incarnation that was ordered of each actor.
        self._ordered: dict[str, int] = {}
        # Lives that are being ended on an order, by the actor's name.
        self._ending: dict[str, asyncio.Event] = {}

    def keep_lease(self, on_lapse: Callable[[], None] | None) -> None:
        """Start to renew this node's lease at the root.

        Args:
            on_lapse: called when the root does not answer for too long; None where the root would end the node
                itself.
        """
        self.spawn(self._keep_lease(on_lapse))

    async def _keep_lease(self, on_lapse: Callable[[], None] | None) -> None:
        while on_lapse is None or not self._tenure.lapsed(self.clock.now()):
            number = self._tenure.ask(self.clock.now())
            renew = RenewLease(
                node=self._node.name,
                incarnation=self._node.incarnation,
                number=number,
                taken=self._tenure.taken,
            )
            self.tell(SUPERVISOR, renew)
            await asyncio.sleep(self._tenure.next_in(self.clock.now()))
        log.error("node %s has not heard of the root in time: it ends", self._node.name)
        on_lapse()

    @receives
    def lease_granted(self, lease: LeaseGranted) -> None:
        """Record that the root granted a lease."""
        self._tenure.granted(lease.number, lease.seconds, lease.heartbeat)

    @receives
    def start_actor(self, order: StartActor) -> None:
        """Start an actor, concurrently with others that are starting here."""
        self._ordered[order.name] = order.incarnation
        self.spawn(self._start(order))

    async def _start(self, order: StartActor) -> None:
        if self._node.is_unusable:
            return  # the supervisor starts the actor again when it hears of the node's end
        place = f"actors.{order.name}"
        try:
            cls = await self.offload(load_actor_class, order.cls, f"{place}.class", order.folder)
            options = decode_options(cls, order.options, f"{place}.options")
            # Other actors write to it as soon as it is up.
            await self._linked.wait()
            left = await self._replace(order)
            if self._ordered[order.name] > order.incarnation:
                # It was replaced before it began.
                return
            collect = self._collect if cls.heavy and order.incarnation > 1 else None
            if collect is not None:
                # Actor and cell refer to each other, so that only the collector frees them.
                collect()
            actor = cls(options)
            if left is not None:
                actor.inherit(left)
                del left
                if collect is not None:
                    # The new actor may not have kept what the former one left.
                    collect()
            cell = self._node.add(order.name, order.incarnation, actor)
            try:
                await cell.start()
            except BaseException as error:
                self._node.remove(cell)
                # The failure is told below, before the loop's next turn, and so before the process ends.
                cell.end_process_if_lost(error)
                raise
        except StoppedWhileStarting:
            return  # by an order, or because this node ends: the supervisor knows, or hears of that
        except Exception as error:
            self.tell(SUPERVISOR, _failed(order, error, ends_process=self._node.is_unusable))
            return
        if self._on_started is not None:
            self._on_started()
        started = ActorStarted(
            name=order.name,
            incarnation=order.incarnation,
            features=tuple(sorted(cell.actor.features)),
            facts=cell.actor.facts(),
        )
        self.tell(SUPERVISOR, started)

    @receives
    def stop_actor(self, order: StopActor) -> None:
        """End a life of an actor, concurrently with others. Its next life waits for that."""
        cell = self._node.cells.get(order.name)
        if cell is not None and cell.incarnation == order.incarnation:
            log.info("%s#%d stops: %s", order.name, order.incarnation, order.reason)
            self._ending[order.name] = ended = asyncio.Event()
            self.spawn(self._stop(cell, ended))
            return
        is_before = cell is None or cell.incarnation < order.incarnation
        if is_before and self._ordered.get(order.name) == order.incarnation:
            # Its class is still loaded, or the life before it still ends: it does not begin.
            self._ordered[order.name] += 1
        self.tell(SUPERVISOR, ActorStopped(name=order.name, incarnation=order.incarnation))

    async def _stop(self, cell: Cell, ended: asyncio.Event) -> None:
        try:
            await cell.stop()
            self._node.remove(cell)
        finally:
            ended.set()
            if self._ending.get(cell.name) is ended:
                del self._ending[cell.name]
        if not self._node.is_unusable:
            self.tell(SUPERVISOR, ActorStopped(name=cell.name, incarnation=cell.incarnation))

    async def _replace(self, order: StartActor) -> object | None:
        """End an earlier life of the actor that still runs here. Return the object that it leaves for the next
        one.
        """
        if (ending := self._ending.get(order.name)) is not None:
            await ending.wait()
        former = self._node.cells.get(order.name)
        if former is None or former.incarnation >= order.incarnation:
            return None
        serves = former.serving
        await former.stop()
        self._node.remove(former)
        return former.actor.leave() if serves else None

    @receives(concurrent=True)
    async def take_directory(self, directory: Directory) -> None:
        """Apply a new directory. A newer one does not wait for the links of an older one, whose peers may be
        gone by now.
        """
        if self._on_directory is not None:
            await self._on_directory(directory)
            self._linked.set()
        self._node.update(directory)

    @receives
    def statistics(self, request: GetStatistics) -> NodeStatistics:
        """Return this node's counters."""
        return self._node.statistics()

    @receives(concurrent=True)
    async def record(self, request: RecordMessages) -> AsyncIterator[Recorded]:
        """Stream the messages that this node's actors receive, from now until `EndRecording`."""
        task = asyncio.current_task()
        assert task is not None
        tap = Tap(self._node, request.recording, request.kinds, texts=request.texts, give_up=task.cancel)
        self._node.taps.append(tap)
        try:
            while (piece := await tap.next()) is not None:
                yield piece
        finally:
            self._node.taps.remove(tap)

    @receives
    def end_recording(self, order: EndRecording) -> None:
        """End a recording after the messages that are buffered."""
        for tap in self._node.taps:
            if tap.name == order.recording:
                tap.end()

    @receives
    def stop_node(self, order: StopNode) -> None:
        """End the node."""
        log.info("node %s (pid %d) stops: %s", self._node.name, os.getpid(), order.reason or "told to")
        if self._on_stop_node is not None:
            self._on_stop_node(order.reason)


def _failed(order: StartActor, error: Exception, *, ends_process: bool) -> ActorFailed:
    """Build the report of a failed start. The traceback of a configuration error would only hide its message:
    it is logged.
    """
    permanent = isinstance(error, ConfigurationError)
    if permanent:
        log.debug("%s#%d could not start", order.name, order.incarnation, exc_info=error)
    trace = "" if permanent else "".join(traceback.format_exception(error))
    return ActorFailed(
        name=order.name,
        incarnation=order.incarnation,
        error=printable(f"{type(error).__name__}: {error}"),
        traceback=printable(trace),
        started=False,
        permanent=permanent,
        ends_process=ends_process,
    )
