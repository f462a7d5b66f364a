"""Nodes on a Ray cluster: each is kept by a Ray actor, which Ray places where there is room.

Ray starts and ends processes, and knows where GPUs are free. All messages go over this runtime's own links, and the
root supervisor alone decides on restarts: Ray's own are off. A node runs in a process of its own under its Ray actor,
and ends with it.

Members of a group of executors have one placement group, so that they are on one host (`STRICT_PACK`) and all of them
are there or none. Each other node has one of its own. Ray is imported when the first node is launched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from pageant.actors.runtime.devices import is_cpu
from pageant.actors.runtime.launcher import MODULE, Joining, Launcher, NodeNeeds
from pageant.actors.runtime.ray_room import NoRoom, Room, Strategy, amounts, asked, shown, why_never

R = TypeVar("R")
DEADLINE = 25.0
"""Seconds for room on the cluster. A start is tried twice, so that its error comes within a minute."""
ACTOR_SECONDS = 60.0
"""The longest time for a Ray actor to start, once there is room."""
END_SECONDS = 10.0
"""Time for a process to end in order, when the topology stops."""
NAMESPACE = "pageant"
KEYS = "--keys"


class RayLauncher(Launcher):
    """Launches nodes as Ray actors.

    Args:
        address: of the Ray cluster; `auto` is the one that this machine belongs to, `local` starts one here. Where this
            process is connected to one already, that is used.
        cpus: CPUs that each node asks for.
        resources: further resources of Ray's that each node asks for, such as `{accelerator_type:H100: 0.01}`.
        strategy: of the placement groups of groups of executors.
        deadline: seconds to wait for room.
    """

    def __init__(
        self,
        joining: Joining,
        address: str = "auto",
        cpus: float = 1,
        resources: Mapping[str, float] | None = None,
        strategy: Strategy = "STRICT_PACK",
        deadline: float = DEADLINE,
    ) -> None:
        super().__init__(joining)
        if strategy not in get_args(Strategy):
            raise ValueError(f"strategy is {strategy!r}; expected one of {', '.join(get_args(Strategy))}")
        if not (deadline > 0 and cpus >= 0):
            raise ValueError(
                f"deadline is {deadline}, cpus {cpus}; expected seconds above 0, and 0 CPUs or more"
            )
        self._address, self._strategy, self._deadline = address, strategy, deadline
        self._own = {"CPU": float(cpus), **(resources or {})}
        self._needs: dict[str, NodeNeeds] = {}
        self._rooms: dict[tuple[str, ...], Room] = {}
        self._processes: set[RayProcess] = set()
        self._connecting = asyncio.Lock()
        self._making_room = asyncio.Lock()
        self._is_ours = False
        """This launcher has connected this process to the cluster."""
        # Calls of Ray's block. One thread makes them, since Ray keeps its connection by thread in places.
        self._thread = ThreadPoolExecutor(1, "pageant ray")

    def learn(self, node: str, needs: NodeNeeds) -> None:
        self._needs[node] = needs

    async def launch(self, node: str, incarnation: int) -> RayProcess:
        """Return once the node's process runs.

        Raises:
            NoRoom: the cluster has no room for it. Says what was asked for, and what there is.
            OSError: Ray is not installed, or the cluster is not reached.
        """
        await self._connect()
        room = await self._room(node)
        actor = await self._call(self._start_actor, room, node, incarnation)
        process = RayProcess(node, actor, self._call)
        try:
            await process.begun(ACTOR_SECONDS)
        except BaseException:
            await process.end(0.0)
            raise
        self._processes.add(process)
        return process

    async def close(self) -> None:
        """Give everything back to the cluster, once the processes have ended."""
        if "ray" not in sys.modules:
            return
        for process in self._processes:
            process.close_input()
        await asyncio.gather(*(process.end(END_SECONDS) for process in self._processes))
        self._processes.clear()
        with contextlib.suppress(Exception):  # the cluster is gone, and everything with it
            await self._call(self._give_back)
        self._thread.shutdown(wait=False)

    # On the thread.

    async def _call(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *arguments))

    async def _connect(self) -> None:
        async with self._connecting:
            await self._call(self._connected)

    def _connected(self) -> None:
        try:
            import ray
        except ImportError:
            raise OSError("the package ray is not installed; pip install 'pageant[ray]'") from None
        if ray.is_initialized():
            return
        address = None if self._address == "local" else self._address
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="error",
                include_dashboard=None,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OSError(f"no Ray cluster is reached at {self._address!r}: {error}") from None
        self._is_ours = True

    async def _room(self, node: str) -> Room:
        nodes = self._needs.get(node, NodeNeeds()).together or (node,)
        async with self._making_room:
            if nodes not in self._rooms:
                self._rooms[nodes] = await self._call(self._make_room, nodes)
        return self._rooms[nodes]

    def _make_room(self, nodes: tuple[str, ...]) -> Room:
        """Return a placement group that is there, for these nodes."""
        import ray
        from ray.util import placement_group, remove_placement_group

        bundles = [self._bundle(node) for node in nodes]
        strategy = self._strategy if len(nodes) > 1 else "PACK"
        if never := why_never(ray.nodes(), bundles, strategy):
            raise NoRoom(f"{shown(nodes, bundles, strategy)}, and {never}")
        group = placement_group(bundles, strategy=strategy, name=f"pageant {' '.join(nodes)}")
        if not group.wait(self._deadline):
            free = {
                name: count for name, count in ray.available_resources().items() if name in asked(bundles)
            }
            remove_placement_group(group)
            found = amounts(free) or "nothing of that"
            raise NoRoom(
                f"{shown(nodes, bundles, strategy)}, and the Ray cluster had {found} free within {self._deadline:g} s"
            )
        return Room(group, nodes, bundles)

    def _bundle(self, node: str) -> dict[str, float]:
        device = self._needs.get(node, NodeNeeds()).device
        gpu = {"GPU": 1.0} if device is not None and not is_cpu(device) else {}
        return {name: amount for name, amount in {**self._own, **gpu}.items() if amount}

    def _start_actor(self, room: Room, node: str, incarnation: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        index = room.nodes.index(node)
        bundle = room.bundles[index]
        others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        actor = ray.remote(NodeKeeper).options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources=others,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=3,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                room.group, placement_group_bundle_index=index
            ),
        )
        given = [one for one in self.joining.given(node, incarnation, elsewhere=True) if one != "--detached"]
        key = ""
        if KEYS in given:
            place = given.index(KEYS)
            key = Path(given[place + 1]).read_text()
            del given[place : place + 2]
        return actor.remote(given, key, [path for path in sys.path if path])

    def _give_back(self) -> None:
        import ray
        from ray.util import remove_placement_group

        rooms, self._rooms = self._rooms, {}
        for room in rooms.values():
            remove_placement_group(room.group)
        if self._is_ours:
            self._is_ours = False
            ray.shutdown()


class NodeKeeper:
    """Ray actor that keeps a node's process.

    Args:
        given: the process's arguments.
        key: the content of the topology's key file; empty where it has none.
        folders: those in which the root finds modules.
    """

    def __init__(self, given: Sequence[str], key: str, folders: Sequence[str]) -> None:
        import subprocess
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="pageant-")
        arguments = list(given)
        if key:
            file = Path(self._folder.name, "pageant.key")
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
                written.write(key)
            arguments += [KEYS, str(file)]
        present = os.environ.get("PYTHONPATH", "")
        paths = os.pathsep.join([*folders, *([present] if present else [])])
        # The process sees the end of this one by its standard input.
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )

    def begun(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def wait(self) -> str:
        """Return how the process ended, once it has."""
        code = self._process.wait()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"its process {self._process.pid} ended {how}"

    def close_input(self) -> None:
        """Let the process see that its parent is leaving."""
        if self._process.stdin is not None:
            self._process.stdin.close()


class RayProcess:
    """A node's process, with the Ray actor that keeps it."""

    def __init__(self, node: str, actor: Any, call: Callable[..., Any]) -> None:
        self._node, self._actor, self._call = node, actor, call
        self._waiting: asyncio.Future[str] | None = None
        self.pid = 0
        """The process's id, on its host."""

    async def begun(self, seconds: float) -> None:
        """Return when the process runs.

        Raises:
            OSError: its Ray actor does not start within `seconds`.
        """
        try:
            self.pid = await asyncio.wait_for(_result(self._actor.begun.remote()), seconds)
        except TimeoutError:
            raise OSError(f"the Ray actor of node {self._node} did not start within {seconds:g} s") from None
        except Exception as error:
            raise OSError(f"the Ray actor of node {self._node} did not start: {error}") from None

    async def wait(self) -> str:
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._wait())
        return await asyncio.shield(self._waiting)

    async def _wait(self) -> str:
        try:
            return str(await _result(self._actor.wait.remote()))
        except Exception as error:  # Ray's own, of which there are many
            return f"its Ray actor died: {str(error).splitlines()[0]}"

    def close_input(self) -> None:
        self._actor.close_input.remote()

    async def end(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
        await self._call(_kill, self._actor)
        await self.wait()


def _kill(actor: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # it is dead, or the cluster is
        ray.kill(actor, no_restart=True)


async def _result(reference: Any) -> Any:
    return await asyncio.wrap_future(reference.future())
