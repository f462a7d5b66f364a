"""An actor as its node hosts it: mailbox, running task, background tasks, incarnation, counters.

The serving loop runs handlers in its own task, without a task per message. A handler whose asker has lost
interest is cancelled by cancelling that task; the loop swallows the cancellation and goes on
(`_swallow_cancel`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pageant.actors.runtime.address import replica_of
from pageant.actors.runtime.handlers import Handler, Style
from pageant.actors.runtime.lanes import Lanes
from pageant.actors.runtime.mailbox import Envelope, Mailbox
from pageant.actors.runtime.tracing import Handling, Tracer
from pageant.protocol.arrays import freeze
from pageant.protocol.errors import PageantError, PeerGone
from pageant.protocol.failure import error_of, failure_of
from pageant.protocol.message import Message
from pageant.protocol.supervision import ActorStatistics, Handled

if TYPE_CHECKING:
    from pageant.actors.runtime.actor import Actor
    from pageant.actors.runtime.node import Node

R = TypeVar("R")

log = logging.getLogger("pageant.cell")


class StoppedWhileStarting(PeerGone):
    """An actor was stopped while it was starting, on purpose."""


# Messages handled before the loop's other tasks get a turn.
TURN = 256
# The longest wait for `on_stop`, for cancelled handlers and tasks, and for functions in threads.
END_SECONDS_MAX = 5.0
# The longest wait for functions of an actor that crashed, after `on_crash`: those that wait for others end there.
RETURN_SECONDS_MAX = 1.0


class Tally:
    """Counts messages of one kind, and the seconds spent on them."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0


class Cell:
    """Hosts one actor for one incarnation.

    Everything here belongs to the thread of the node's event loop. Functions that the actor offloads run in the
    threads of its lanes and touch no field of the cell.
    """

    def __init__(self, node: Node, name: str, incarnation: int, actor: Actor) -> None:
        self.node, self.name, self.incarnation, self.actor = node, name, incarnation, actor
        # The prefix of the actor's name, resolved first for addresses that it uses.
        self.replica = replica_of(name)
        # Messages that wait for the serving loop. The loop is the only consumer.
        self.mailbox = Mailbox(node.loop)
        # The actor's generator, seeded by name and incarnation, so that a simulation repeats.
        self.random = random.Random(f"{node.seed}/{name}/{incarnation}")
        # No two runs have the same ids, whatever their seed.
        self.tracer = Tracer(self, random.Random(f"{node.name}/{name}/{incarnation}/{node.clock.wall()}"))
        self.sender, self.sender_incarnation = "", 0
        # No further message is delivered. Set once, never cleared.
        self.closed = self._stopped = False
        # Handler, its method and its counters, by message type.
        self._table = {
            kind: (getattr(actor, handler.name), handler, Tally()) for kind, handler in actor.handlers.items()
        }
        # The task of `on_start`, then that of the serving loop; None before the start.
        self._task: asyncio.Task[None] | None = None
        # `on_start` is done and the serving loop runs.
        self.serving = False
        # Background tasks and concurrent handlers, each with the envelope that it handles (None for a
        # background task).
        self._tasks: dict[asyncio.Task[None], Envelope | None] = {}
        # The envelope that the serving loop handles now. Cancelling it means cancelling `_task`.
        self._current: Envelope | None = None
        # Threads for offloaded functions.
        self._lanes = Lanes(node.platform, name)
        # The error that the actor crashes with. The first one wins.
        self._failure: BaseException | None = None
        # Messages dropped because an earlier life of their sender sent them, or they were for an earlier life.
        self._stale = 0
        actor._cell = self

    # Life.

    async def start(self) -> None:
        """Run `on_start`, then serve. Raises the exception of `on_start`."""
        self._task = self.node.loop.create_task(self.actor.on_start(), name=f"start of {self.name}")
        try:
            await self._task
            self._raise_if_ended()
        except asyncio.CancelledError:
            await self._close("failed to start")
            self._raise_if_ended()
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise RuntimeError("on_start was cancelled by what it awaited") from None
            raise
        except BaseException:
            await self._close("failed to start")
            raise
        self.serving = True
        self._task = self.node.loop.create_task(self._serve(), name=f"actor {self.name}")
        self._task.add_done_callback(self._serving_done)

    def _raise_if_ended(self) -> None:
        """Raise if a background task failed, or the actor was stopped, while `on_start` ran."""
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise StoppedWhileStarting(f"{self.name} was stopped while it was starting")

    async def stop(self) -> None:
        """Stop in order: handle no further message, run `on_stop`, end background tasks."""
        if self.closed:
            return
        self.closed = self._stopped = True
        until = self.node.loop.time() + END_SECONDS_MAX
        if self._task is not None:
            self._task.cancel()
            await self._ended([self._task])
        try:
            if self.serving:
                async with asyncio.timeout_at(until):
                    await self.actor.on_stop()
        except Exception:
            log.exception("%s failed to stop cleanly", self.name)
        finally:
            await self._close("stopped")
            await self._lanes.wait(until - self.node.loop.time())
            self._end_if_stuck()

    def crash(self, error: BaseException) -> None:
        """End this life with an error. The node reports it to the supervisor."""
        if self.closed or self._failure is not None:
            return
        self._failure = error
        if self._task is not None:
            self._task.cancel()
        if not self.serving:
            # `start` is still in `on_start`, and raises the failure.
            return
        self.closed = True
        self.node.keep(self._report_crash(error))

    async def _report_crash(self, error: BaseException) -> None:
        await self._close(f"crashed with {type(error).__name__}: {error}")
        try:
            self.actor.on_crash(error)
        except Exception:
            log.exception("%s failed to say that it crashed", self.name)
        await self._lanes.wait(RETURN_SECONDS_MAX)
        trace = "".join(traceback.format_exception(error))
        is_useless = self._lanes.is_stuck or self.actor.loses_process(error)
        ends = is_useless and self.node.on_unusable is not None
        self.node.actor_crashed(self, f"{type(error).__name__}: {error}", trace, ends_process=ends)
        self._end_if_stuck()
        self.end_process_if_lost(error)

    def _end_if_stuck(self) -> None:
        """End the node's process if a function that this actor offloaded is still running.

        Its thread, memory and device cannot be freed otherwise. The root's process is its user's, and goes on.
        """
        if self._lanes.is_stuck:
            self._end_process("a function that it offloaded is still running")

    def end_process_if_lost(self, error: BaseException) -> None:
        """End the node's process if no later life of this actor could use it after `error`."""
        if self.actor.loses_process(error):
            kind = type(error).__name__
            self._end_process(f"nothing like it can run in this process any more after {kind}")

    def _end_process(self, why: str) -> None:
        log.error("%s has ended, and %s", self.name, why)
        if self.node.on_unusable is not None:
            self.node.is_unusable = True
            self.node.on_unusable()

    async def _close(self, why: str) -> None:
        self.closed = True
        gone = PeerGone(f"{self.name} {why}")
        for envelope in self.mailbox.drain():
            self._refuse(envelope, gone)
        for task, handled in self._tasks.items():
            if handled is not None and handled.reply is not None:
                handled.reply.fail(gone)
            task.cancel()
        await self._ended([*self._tasks, *([self._task] if self._task is not None else [])])
        self._lanes.close()

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for cancelled tasks. A task that does not end is abandoned and logged as an error."""
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=END_SECONDS_MAX)
            for task in left:
                log.error("%s of %s did not end when it was cancelled", task.get_name(), self.name)

    def _serving_done(self, task: asyncio.Task[None]) -> None:
        """Crash if the serving loop raised. It never ends by itself."""
        if not task.cancelled() and task.exception() is not None:
            self.crash(task.exception())  # type: ignore[arg-type]

    def _refuse(self, envelope: Envelope, error: PageantError) -> None:
        if envelope.reply is not None:
            envelope.reply.fail(error)
        else:
            self.node.dead_letter("actor down", self.name, envelope.message)

    # Messages.

    def deliver(self, envelope: Envelope) -> None:
        """Put a message into the mailbox, or refuse it and count the reason."""
        if self.closed:
            self._refuse(envelope, PeerGone(f"{self.name} is down"))
        elif not self.mailbox.put(envelope):
            self.node.mailbox_full(self, envelope)
        elif self.node.taps:
            self.node.tapped(self, envelope)

    def cancel(self, envelope: Envelope) -> None:
        """Cancel the handler of a message, or keep it from starting: its asker no longer wants the answer."""
        if envelope.cancelled:
            return
        envelope.cancelled = True
        if envelope is self._current and self._task is not None:
            self._task.cancel()
            return
        for task, handled in self._tasks.items():
            if handled is envelope:
                task.cancel()

    def count_stale(self) -> None:
        """Count a dropped message from, or for, an earlier life."""
        self._stale += 1

    async def _serve(self) -> None:
        mailbox, turn = self.mailbox, 0
        while not self.closed:
            envelope = mailbox.take()
            if envelope is None:
                turn = 0
                await mailbox.wait()
                continue
            turn += 1
            if turn > TURN:
                turn = 0
                await asyncio.sleep(0)
            if envelope.cancelled:
                continue
            entry = self._table.get(type(envelope.message))
            if entry is None:
                self._refuse_unhandled(envelope)
                continue
            function, handler, tally = entry
            if handler.concurrent:
                self._start_task(self._handle(function, handler, tally, envelope), envelope)
                continue
            self._current = envelope
            try:
                await self._handle(function, handler, tally, envelope)
                if envelope.cancelled:
                    self._swallow_cancel(envelope, None)
            except asyncio.CancelledError as cancelled:
                self._swallow_cancel(envelope, cancelled)
            finally:
                self._current = None

    def _swallow_cancel(self, envelope: Envelope, cancelled: asyncio.CancelledError | None) -> None:
        """Swallow a cancellation that `cancel` caused (the handler may have swallowed it, too).

        A cancellation that nobody asked for is the handler's own failure. Any other is the end of this actor.
        """
        task = self._task
        assert task is not None
        if cancelled is not None and not task.cancelling():
            self._failed(envelope, cancelled)
        elif cancelled is not None and (self.closed or not envelope.cancelled):
            if envelope.reply is not None:
                envelope.reply.fail(PeerGone(f"{self.name} stopped while it handled the request"))
            raise cancelled
        elif task.cancelling() and not self.closed:
            task.uncancel()

    def _failed(self, envelope: Envelope, error: BaseException) -> None:
        """Send a handler's exception to the asker. Without an asker, the actor crashes."""
        if envelope.reply is None:
            self.crash(error)
        else:
            envelope.reply.fail(error_of(failure_of(error, self.name)))

    async def _handle(
        self, function: Callable[[Any], Any], handler: Handler, tally: Tally, envelope: Envelope
    ) -> None:
        """Run one handler and give its outcome to the asker, if there is one."""
        self.sender, self.sender_incarnation = envelope.sender, envelope.from_incarnation
        reply = envelope.reply
        clock = self.node.clock
        began = clock.now()
        traced: Handling | None = None
        if envelope.trace is not None:
            traced = Handling(self.tracer, type(envelope.message).__name__, envelope.trace, began)
        try:
            if handler.style is Style.STREAM:
                if reply is not None and not reply.streams:
                    kind = type(envelope.message).__name__
                    raise TypeError(f"{kind} is answered with a stream: use stream(), not ask()")
                await self._run_stream(function(envelope.message), envelope)
            else:
                result = function(envelope.message)
                if handler.style is Style.AWAIT:
                    result = await result
                if reply is not None:
                    if isinstance(result, Message):
                        freeze(result)
                    reply.resolve(result)
        except Exception as error:
            if traced is not None:
                traced.error = f"{type(error).__name__}: {error}"
            self._failed(envelope, error)
        finally:
            ended = clock.now()
            tally.count += 1
            tally.seconds += ended - began
            if traced is not None:
                traced.end(ended)

    async def _run_stream(self, items: Any, envelope: Envelope) -> None:
        reply = envelope.reply
        try:
            async for item in items:
                if reply is not None:
                    freeze(item)
                    await reply.item(item)
            if reply is not None:
                reply.end()
        finally:
            await items.aclose()

    def _refuse_unhandled(self, envelope: Envelope) -> None:
        """Refuse a message without a handler: an ask is answered with the mistake, a tell is a dead letter."""
        kind = type(envelope.message).__name__
        if envelope.reply is not None:
            takes = ", ".join(sorted(known.__name__ for known in self._table))
            detail = f"{self.name} takes no {kind}; it takes {takes}"
            envelope.reply.fail(error_of(failure_of(TypeError(detail), self.name)))
        else:
            self.node.dead_letter("no handler", self.name, envelope.message)

    # What the actor starts.

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a background task of the actor."""
        self._start_task(coroutine, None)

    def _start_task(self, coroutine: Coroutine[Any, Any, None], envelope: Envelope | None) -> None:
        task = self.node.loop.create_task(coroutine, name=f"task of {self.name}")
        self._tasks[task] = envelope
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        handled = self._tasks.pop(task, None)
        if task.cancelled():
            if handled is not None and not handled.cancelled and not self.closed:
                self._failed(handled, asyncio.CancelledError("what it awaited was cancelled"))
        elif task.exception() is not None:
            self.crash(task.exception())  # type: ignore[arg-type]

    async def offload(self, call: Callable[[], R], lane: str = "", threads: int = 1) -> R:
        """Run a function in one of the actor's own threads, or in what the platform has in place of threads."""
        return await self._lanes.run(call, lane, threads)

    def statistics(self) -> ActorStatistics:
        """Return the counters as they are now."""
        tallies = {kind.__name__: tally for kind, (_, _, tally) in self._table.items() if tally.count}
        return ActorStatistics(
            incarnation=self.incarnation,
            mailbox_depth=len(self.mailbox),
            mailbox_depth_max=self.mailbox.depth_max,
            handled=sum(tally.count for tally in tallies.values()),
            seconds=sum(tally.seconds for tally in tallies.values()),
            stale=self._stale,
            tasks=len(self._tasks),
            kinds={kind: Handled(tally.count, tally.seconds) for kind, tally in tallies.items()},
        )
