"""Baselines of the runtime: bare asyncio within a process, bare `zmq.asyncio` between two."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq
import zmq.asyncio

from pageant.actors.runtime.loop import new_event_loop


async def queue_puts_per_second(count: int) -> float:
    """Puts into an `asyncio.Queue` that a task empties."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    done = asyncio.get_running_loop().create_future()

    async def take() -> None:
        for _ in range(count):
            await queue.get()
        done.set_result(None)

    task = asyncio.create_task(take())
    began = time.perf_counter()
    for value in range(count):
        queue.put_nowait(value)
    await done
    elapsed = time.perf_counter() - began
    await task
    return count / elapsed


async def future_round_trips_per_second(count: int) -> float:
    """A task sets a future that another awaits, and waits for the next."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[asyncio.Future[int]] = loop.create_future()

    async def answer() -> None:
        nonlocal asked
        for value in range(count):
            reply = await asked
            asked = loop.create_future()
            reply.set_result(value)

    task = asyncio.create_task(answer())
    began = time.perf_counter()
    for _ in range(count):
        reply: asyncio.Future[int] = loop.create_future()
        asked.set_result(reply)
        await reply
    elapsed = time.perf_counter() - began
    await task
    return count / elapsed


class ZmqPeer:
    """A process that echoes over a bare ROUTER socket, and a DEALER to it."""

    def __enter__(self) -> ZmqPeer:
        self._folder = tempfile.TemporaryDirectory(prefix="pageant-bench-")
        endpoint = f"ipc://{Path(self._folder.name) / 'echo.sock'}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pageant.scripts.bench.bare", endpoint], stdin=subprocess.PIPE
        )
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(endpoint)
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close(0)
        self._context.term()
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    async def round_trips(self, payload: bytes, count: int) -> list[float]:
        """Seconds of each round trip."""
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            await self._socket.send(payload)
            await self._socket.recv()
            seconds.append(time.perf_counter() - began)
        return seconds


async def _echo(endpoint: str) -> None:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(endpoint)
    while True:
        await socket.send_multipart(await socket.recv_multipart())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_echo(sys.argv[1]))
