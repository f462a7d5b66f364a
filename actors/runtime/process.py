"""A node as a process of its own: `python -m pageant.actors.runtime.process --join ENDPOINT --name NAME`.

It links to the root, then to every node that joined before it, reports `NodeJoined`, and then follows the
supervisor's orders. It ends at `StopNode`, or when its parent is gone. A standby (`--standby`) reads the rest
of its command line from its standard input, when it is needed.

A node that was started by hand may lose its lease, because it was cut off or stood still. It then ends all of
its actors and begins anew: as the same process, but without any state, and under a new incarnation.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import faulthandler
import gc
import importlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import zmq

from pageant.actors.runtime.address import AGENT, SUPERVISOR
from pageant.actors.runtime.agent import NodeAgent
from pageant.actors.runtime.launcher import MODULE
from pageant.actors.runtime.logs import configure, read_level
from pageant.actors.runtime.loop import new_event_loop
from pageant.actors.runtime.node import Node
from pageant.actors.runtime.platform import Machine, Platform
from pageant.actors.runtime.transport.addresses import endpoint_towards
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer, NotYet
from pageant.protocol.errors import TopologyError
from pageant.protocol.handshake import Welcome, fingerprint
from pageant.protocol.supervision import Directory, NodeEntry, NodeJoined

log = logging.getLogger("pageant.process")

# The exit code of a node that lost the topology and is to join it again.
LOST = -1
# Time until a root that did not admit this node is asked again.
AGAIN_SECONDS = 1.0
# The longest wait for links to peers that do not answer.
MEET_SECONDS = 2.0
# The time that a process whose parent died has for an orderly end.
ORPHAN_SECONDS = 1.5


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of a node process."""
    parser = argparse.ArgumentParser(prog="pageant node", description="Run a node of a topology.")
    parser.add_argument("--join", required=True, help="the root node's endpoint")
    parser.add_argument("--name", required=True, help="this node's name in the topology")
    parser.add_argument("--incarnation", type=int, default=0, help="issued by the root; 0 asks for one")
    parser.add_argument(
        "--endpoint", help="where this node listens; by default, where the root's host can reach it"
    )
    parser.add_argument("--keys", help="the file with the topology's key, made by `pageant keys`")
    parser.add_argument("--seed", type=int, default=0, help="of the actors' random generators")
    parser.add_argument("--wire-always", action="store_true", help="encode messages within the node too")
    parser.add_argument(
        "--log-level", type=_level, default="warning", help="debug, info, warning (the default) or error"
    )
    parser.add_argument("--log-format", default="text", choices=("text", "json"))
    parser.add_argument("--crash-log", type=int, help="descriptor of a file for the last traceback")
    parser.add_argument("--detached", action="store_true", help="do not end with standard input")
    parser.add_argument(
        "--rejoin-seconds",
        type=float,
        default=120.0,
        help="when it has lost the topology, how long it tries to join again; 0 ends at once (default: 120)",
    )
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _level(text: str) -> int:
    try:
        return read_level(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _collect() -> None:
    """Free unreachable objects, those that `gc.freeze` has set aside included."""
    gc.unfreeze()
    gc.collect()


class NodeProcess:
    """The life of a node process."""

    def __init__(
        self, options: argparse.Namespace, incarnation: int, platform: Platform | None = None
    ) -> None:
        self.node = Node(
            options.name,
            incarnation=incarnation,
            seed=options.seed,
            wire_always=options.wire_always,
            platform=platform or Machine(options.keys),
        )
        self.link = self.node.platform.open_link(
            options.name, incarnation, options.endpoint, self.node.remote
        )
        self._join, self._detached = options.join, options.detached
        self.parent = os.getppid()
        self.lapsed = self.unusable = False
        self._present: set[tuple[str, int]] = set()
        self._links: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._joining: asyncio.Task[Welcome] | None = None
        self.node.on_agent_crash = lambda error: self._stop.set()
        self.node.on_unusable = self._end_unusable
        self.link.on_broken = self._broken

    async def run(self) -> None:
        """Join, serve, and return after the end."""
        try:
            await self._join_and_serve()
        finally:
            for task in self._links.values():
                task.cancel()
            await self.node.stop()
            self.link.close()

    async def _join_and_serve(self) -> None:
        self._joining = asyncio.create_task(self.link.connect("root", 1, self._join))
        await asyncio.wait([self._joining])
        if self._stop.is_set():
            return
        root = self._joining.result().node
        self.node.remote.connect(self.link, root)
        # Modules that an actor loaded live as long as the process. To traverse torch's modules alone, the garbage
        # collector would delay a step by a tenth of a second: they are frozen.
        on_machine = isinstance(self.node.platform, Machine)
        agent = NodeAgent(
            self.node,
            self._meet_peers,
            lambda reason: self._stop.set(),
            on_started=gc.freeze if on_machine else None,
            collect=_collect if on_machine else None,
        )
        await self.node.add(AGENT + self.node.name, self.node.incarnation, agent).start()
        self.node.tell(
            SUPERVISOR,
            NodeJoined(
                node=self.node.name,
                incarnation=self.node.incarnation,
                endpoint=self.link.endpoint,
                pid=self.node.platform.pid,
                devices=self.node.platform.devices,
            ),
        )
        self._say(f"joined the topology at {self._join}")
        # A child of the root is killed by it in time; where the root cannot, the node ends by itself.
        agent.keep_lease(self._lapse if self._detached else None)
        await self._stop.wait()
        if not self.lapsed:
            self._say("left the topology")

    def _say(self, what: str) -> None:
        """Tell the user who started this node by hand."""
        if self._detached:
            print(f"pageant node {self.node.name}: {what}", file=sys.stderr, flush=True)

    def _end_unusable(self) -> None:
        """End the process: an actor left a running thread or a broken device behind, and its next life could
        not use them.
        """
        self.unusable = True
        self._stop.set()

    def _lapse(self) -> None:
        """End the process: the actors of this node are given to others."""
        self.lapsed = True
        self._stop.set()

    def stop(self) -> None:
        """End the node in order."""
        self._stop.set()
        if self._joining is not None:
            self._joining.cancel()

    def _broken(self, node: str, incarnation: int) -> None:
        """End this node after a connection to a living node broke.

        Messages are lost. Rather than go on with gaps in its state, the node comes back as a new incarnation.
        """
        if node == self.node.remote.root or (node, incarnation) in self._present:
            log.error("the connection to %s#%d broke: node %s ends", node, incarnation, self.node.name)
            self.lapsed = self.lapsed or self._detached
            self._stop.set()

    async def _meet_peers(self, directory: Directory) -> None:
        """Link to every node that came before this one; later ones link to us.

        A peer that hangs delays no other: messages to it wait until it is linked.
        """
        self._present = {(entry.name, entry.incarnation) for entry in directory.nodes}
        for key in self._links.keys() - self._present:
            self._links.pop(key).cancel()
        for entry in directory.nodes:
            if entry.name == self.node.name:
                break
            key = (entry.name, entry.incarnation)
            if entry.name != self.node.remote.root and key not in self._links:
                self._links[key] = asyncio.create_task(self._link_to(entry))
        if self._links:
            await asyncio.wait(self._links.values(), timeout=MEET_SECONDS)

    async def _link_to(self, entry: NodeEntry) -> None:
        """Try to link for as long as the node is there: a busy one may answer late."""
        while True:
            try:
                await self.link.connect(entry.name, entry.incarnation, entry.endpoint)
                return
            except NoAnswer as error:
                log.warning("%s; trying again", error)
            except LinkRefused as error:
                log.error("%s cannot be linked: %s", entry.name, error)
                return


async def _ask_for_incarnation(options: argparse.Namespace) -> int:
    """Say hello without an incarnation, to be given one: at once, or when another node of that name is gone."""

    class Nobody:
        def receive(self, node: str, frames: object) -> None: ...
        def refuse(self, node: str, reason: str) -> None: ...
        def met(self, node: str) -> None: ...
        def replaced(self, node: str) -> None: ...
        def lost(self, node: str, envelopes: int) -> None: ...

    link = Machine(options.keys).open_link(options.name, 0, options.endpoint, Nobody())
    waits = False
    until = asyncio.get_running_loop().time() + options.rejoin_seconds if options.again else None
    try:
        while True:
            try:
                async with asyncio.timeout_at(until):
                    return (await link.connect("root", 1, options.join)).issued
            except NoAnswer as error:
                if until is None:
                    raise
                log.warning("node %s: %s; trying again", options.name, error)
            except TimeoutError:
                seconds = f"{options.rejoin_seconds:g} s"
                raise NoAnswer(f"root at {options.join} did not answer within {seconds}") from None
            except NotYet as error:
                log.log(logging.DEBUG if waits else logging.WARNING, "node %s waits: %s", options.name, error)
                waits = True
            await asyncio.sleep(AGAIN_SECONDS)
    finally:
        link.close()


async def _run(options: argparse.Namespace) -> int:
    try:
        _check_address(options.join)
        options.endpoint = options.endpoint or endpoint_towards(options.join)
        incarnation = options.incarnation or await _ask_for_incarnation(options)
        process = NodeProcess(options, incarnation)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        if not options.detached:
            loop.add_reader(sys.stdin.fileno(), _end_with_parent, process)
        await process.run()
        if not options.detached:
            _bound_end_if_orphaned(process)  # it may have been too soon to know
    except (LinkRefused, TopologyError, OSError, zmq.ZMQError) as error:
        print(f"pageant node {options.name}: {error}", file=sys.stderr)
        return 1
    if process.unusable:
        if options.crash_log is not None:
            faulthandler.dump_traceback(options.crash_log)
        # The interpreter would wait for a thread, or for a device that does not answer any more.
        os._exit(1)
    if process.lapsed and options.detached and not options.incarnation and options.rejoin_seconds > 0:
        return LOST
    return 1 if process.lapsed else 0


def _check_address(address: str) -> None:
    """Raise TopologyError if `address` is no address that a node can have."""
    kind, _, rest = address.partition("://")
    if kind not in ("tcp", "ipc") or not rest or (kind == "tcp" and not rest.rpartition(":")[2].isdigit()):
        raise TopologyError("--join", f"found {address!r}; expected an address such as tcp://10.0.0.1:5700")


def _end_with_parent(process: NodeProcess) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        _bound_end_if_orphaned(process)
        process.stop()


def _bound_end_if_orphaned(process: NodeProcess) -> None:
    """Bound the time of an orderly end if the parent has died: nothing else would wait for this process, or
    kill it.
    """
    if os.getppid() != process.parent:
        signal.setitimer(signal.ITIMER_REAL, ORPHAN_SECONDS)


def _read_arguments_when_needed(modules: Sequence[str]) -> list[str]:
    """Import a standby's modules, then wait for the rest of its command line; empty if the standby is not
    needed.
    """
    for module in (*modules, "pageant.actors.runtime.transport.zeromq"):
        importlib.import_module(module)
    fingerprint()
    line = sys.stdin.buffer.readline()
    return list(json.loads(line)) if line else []


def main(arguments: list[str] | None = None) -> int:
    """Run a node until it is told to stop; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--standby" in arguments:
        place = arguments.index("--standby")
        rest = _read_arguments_when_needed(arguments[place + 1 :])
        if not rest:
            return 0
        arguments = [*arguments[:place], *rest]
    options = parse_arguments(arguments)
    configure(options.log_level, options.log_format, options.name)
    if options.crash_log is not None:
        faulthandler.enable(options.crash_log)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        code = runner.run(_run(options))
    if code == LOST:
        print(f"pageant node {options.name}: its lease is over; it joins again", file=sys.stderr, flush=True)
        again = [one for one in arguments if one != "--again"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        os.execve(sys.executable, [sys.executable, "-m", MODULE, *again, "--again"], environment)
    return code


def leave(code: int) -> NoReturn:
    """End this process, whose work is done.

    Where a library has loaded Triton, the interpreter is not taken apart: Triton's bindings would report what they
    still refer to as leaks, in dozens of lines. Nor is it where a thread still waits inside a library: that would end
    in the middle of C++ code, and the process with an error.
    """
    left = any(thread.daemon for thread in threading.enumerate())
    if "triton" not in sys.modules and not left:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
