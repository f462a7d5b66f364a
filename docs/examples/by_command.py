"""A launcher that starts nodes with a command of yours in front: over ssh, or as a job of a cluster's scheduler.

listen: tcp://10.0.0.1:5700
keys: pageant.key
nodes:
  far: {process: true, device: "cuda:0", launcher: {class: "by_command:ByCommand", options: {command: [ssh, 10.0.0.7]}}}
"""

from __future__ import annotations

import asyncio
import contextlib

from pageant.actors.runtime.launcher import Joining, Launcher


class ByCommand(Launcher):
    def __init__(self, joining: Joining, command: list[str]) -> None:
        super().__init__(joining)
        self.command = command

    async def launch(self, node: str, incarnation: int) -> Job:
        command = [*self.command, *self.joining.command(node, incarnation, elsewhere=True)]
        return Job(await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL))


class Job:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def wait(self) -> str:
        return f"its job ended with exit code {await self.process.wait()}"

    def close_input(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    async def end(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
