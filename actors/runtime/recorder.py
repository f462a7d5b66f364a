"""The recorder: follows every node of a running topology, and writes the messages of their actors to a file.

It runs beside the topology: on the root's node for a user of the library, on a visitor's for `pageant record`.
A node that dies is recorded up to its death, and its next life from its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from pageant.actors.runtime.address import AGENT, SUPERVISOR, role_of
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.recording import RecordingHeader, RecordingWriter
from pageant.actors.runtime.version import VERSION
from pageant.protocol.errors import PageantError
from pageant.protocol.handshake import fingerprint
from pageant.protocol.recording import ActorDescription, EndRecording, GetActor, Recorded, RecordMessages
from pageant.protocol.statistics import ExecutorStatistics, GetExecutorStatistics
from pageant.protocol.supervision import Directory, GetDirectory

# Kinds recorded by default: what a request asks, what is computed for it, and its output.
KINDS = ("Tokenize", "TokenizeChat", "Submit", "Abort", "StepPlan", "StepResult", "OutputBatch")
# Interval at which the recorder looks for new nodes.
LOOK_SECONDS = 0.5
ASK_SECONDS = 10.0
# The longest wait for a node's next part, which comes even if it is empty.
PIECE_SECONDS = 30.0
END_SECONDS = 5.0
# Roles whose classes and options a recording keeps, so that a replay can have the same.
DESCRIBED = ("scheduler", "blocks", "executor", "drafter")


class Recorder:
    """Records from `start` to `stop`, on the loop of its node.

    Args:
        node: can ask the supervisor; and the nodes, once `look` has found them.
        look: returns the present directory; None asks the supervisor.
        kinds: the kinds of messages to record, or `*`.
        texts: keep prompts, outputs, stop strings, schemas and names too; without it, only token ids are kept.
    """

    def __init__(
        self,
        node: Node,
        path: Path,
        *,
        topology: str = "",
        kinds: Sequence[str] = KINDS,
        texts: bool = False,
        look: Callable[[], Awaitable[Directory]] | None = None,
    ) -> None:
        self._node, self._path, self._topology = node, path, topology
        self._kinds, self._texts = tuple(kinds), texts
        self._look = look or self._ask_for_directory
        self._name = os.urandom(16).hex()
        self._streams: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._error: OSError | None = None
        # Set when the file cannot be written any more; `stop` raises the error.
        self.failed = asyncio.Event()
        self.writer: RecordingWriter

    async def start(self) -> None:
        """Return once every node that is up records.

        Raises:
            OSError: the file exists already, or cannot be written.
        """
        directory = await self._look()
        header = await self._describe(directory)
        self.writer = RecordingWriter(self._path, header)
        began = self._follow(directory)
        await asyncio.gather(*began)
        self._watching = self._node.loop.create_task(self._keep_looking(), name="recorder")

    async def stop(self) -> None:
        """End the recording, and return when all of it is written.

        Raises:
            OSError: a part could not be written.
        """
        if self._watching is not None:
            self._watching.cancel()
        for node, _ in self._streams:
            self._node.tell(f"{AGENT}{node}", EndRecording(recording=self._name))
        tasks = list(self._streams.values())
        ended = True
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=END_SECONDS)
            ended = not left
            for task in left:
                task.cancel()
        self.writer.close(self._node.clock.wall() if ended and self._error is None else None)
        if self._error is not None:
            raise self._error

    async def _ask_for_directory(self) -> Directory:
        directory: Directory = await self._node.ask(SUPERVISOR, GetDirectory(), ASK_SECONDS)
        return directory

    async def _describe(self, directory: Directory) -> RecordingHeader:
        names = [actor.name for actor in directory.actors if role_of(actor.name) in DESCRIBED]
        actors: dict[str, ActorDescription] = {
            name: await self._node.ask(SUPERVISOR, GetActor(name=name), ASK_SECONDS) for name in names
        }
        pool: ExecutorStatistics | None = None
        with contextlib.suppress(PageantError, StopIteration):  # of a user's own, or not there now
            first = next(name for name in names if role_of(name) == "executor")
            pool = await self._node.ask(first, GetExecutorStatistics(), ASK_SECONDS)
        return RecordingHeader(
            version=VERSION,
            fingerprint=fingerprint(),
            began=self._node.clock.wall(),
            topology=self._topology,
            kinds=self._kinds,
            texts=self._texts,
            actors=actors,
            num_blocks=pool.num_blocks if pool is not None else None,
            block_size=pool.block_size if pool is not None else None,
            windows=pool.windows if pool is not None else (None,),
        )

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(PageantError):  # it is looked for again
                self._follow(await self._look())

    def _follow(self, directory: Directory) -> list[asyncio.Future[None]]:
        """Begin to record the nodes that are new. Return a future for each, done when its recording has begun."""
        began = []
        for node in directory.nodes:
            key = node.name, node.incarnation
            task = self._streams.get(key)
            if task is None or task.done():
                recording: asyncio.Future[None] = self._node.loop.create_future()
                self._streams[key] = self._node.loop.create_task(self._record(node.name, recording))
                began.append(recording)
        return began

    async def _record(self, node: str, began: asyncio.Future[None]) -> None:
        request = RecordMessages(recording=self._name, kinds=self._kinds, texts=self._texts)
        try:
            pieces: AsyncIterator[Recorded] = self._node.stream(f"{AGENT}{node}", request, PIECE_SECONDS)
            async for piece in pieces:
                if piece.messages or piece.dropped:
                    self.writer.write(piece)
                if not began.done():
                    began.set_result(None)
        except PageantError:  # it has died, or cannot be reached: it is followed again if it is still there
            pass
        except OSError as error:
            self._error = error
            self.failed.set()
        finally:
            if not began.done():
                began.set_result(None)
