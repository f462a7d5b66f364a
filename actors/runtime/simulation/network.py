"""A simulated network: envelopes between any two nodes in order, late, and sometimes not at all.

It does what ZeroMQ over TCP does, good and bad. Between two lives of nodes nothing overtakes and nothing comes
twice. A path that is cut holds envelopes back until it is whole again. A clogged path, or a slow node, takes
envelopes one by one. A connection that breaks loses what is on its way, in both directions, and the node that
made it is told. Messages that come twice all the same were sent twice by actors: they ask again, and go back in
a stream.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import Any

from pageant.actors.runtime.platform import Receiver
from pageant.actors.runtime.simulation.loop import PROCESS, Process, VirtualLoop
from pageant.actors.runtime.transport.errors import LinkRefused, NoAnswer
from pageant.actors.runtime.version import VERSION
from pageant.protocol.envelope import decode_header
from pageant.protocol.handshake import Welcome

HANDSHAKE_SECONDS = 10.0
# Time between two envelopes on a clogged path.
CLOGGED_SECONDS = 0.02
# Time that a slow node takes for an envelope.
SLOW_SECONDS = 0.005
# The longest time until a broken connection is noticed.
NOTICE_SECONDS_MAX = 0.1
NOT_KNOWN = "not a handshake, and the node is not known"
# Kinds with figures of the real process and machine, which differ from run to run.
MEASURED = (b"NodeStatistics",)


class _Path:
    """One direction between two links."""

    __slots__ = ("clogged_until", "last_arrival", "life", "open_at", "whole_at")

    def __init__(self) -> None:
        self.last_arrival = self.clogged_until = self.open_at = self.whole_at = 0.0
        self.life = 0  # how often its connection broke


class Trace:
    """Deliveries of a run, in order: a digest, and the lines themselves where they are kept. Times are in
    virtual seconds.
    """

    def __init__(self, keep: bool = False) -> None:
        self.lines: list[str] | None = [] if keep else None
        self.deliveries = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def delivered(self, now: float, source: str, target: str, frames: Sequence[bytes]) -> None:
        """Add an envelope that reached its node."""
        self.deliveries += 1
        header = frames[0]
        self._digest.update(f"{now:.9f} {source} {target}".encode())
        self._digest.update(header)
        if not any(kind in header for kind in MEASURED):
            for frame in frames[1:]:
                self._digest.update(frame)
        if self.lines is not None:
            said = decode_header(header)
            text = f"{said.mode.name} {said.kind} {said.sender}#{said.from_incarnation} -> "
            text += f"{said.to}#{said.to_incarnation} {said.correlation or ''}"
            body = b"" if any(kind in header for kind in MEASURED) else b"".join(frames[1:])
            mark = hashlib.blake2b(body, digest_size=4).hexdigest()
            self.lines.append(f"{now:.6f} {source} -> {target}: {text} [{mark}]")

    def note(self, now: float, text: str) -> None:
        """Add another event, such as a fault."""
        self._digest.update(f"{now:.9f} {text}".encode())
        if self.lines is not None:
            self.lines.append(f"{now:.6f} {text}")

    @property
    def digest(self) -> str:
        """Return a digest that is equal for equal runs."""
        return self._digest.hexdigest()


class Network:
    """All links of one simulation.

    Args:
        latency: draws the seconds that an envelope is on its way.
    """

    def __init__(self, loop: VirtualLoop, random: Random, latency: Callable[[Random], float]) -> None:
        self.loop, self.trace = loop, Trace()
        self._random, self._latency = random, latency
        self._links: dict[str, SimulatedLink] = {}
        self._paths: dict[tuple[str, str], _Path] = {}
        self.lost = 0

    def listen(self, link: SimulatedLink) -> None:
        """Make a link reachable."""
        self._links[link.endpoint] = link

    def close(self) -> None:
        """Close every link."""
        for link in self._links.values():
            link.close()

    def at(self, endpoint: str) -> SimulatedLink | None:
        """Return the living link at an endpoint, or None."""
        link = self._links.get(endpoint)
        return link if link is not None and link.alive else None

    def life_of(self, node: str) -> SimulatedLink | None:
        """Return the link of a node that lives, or None."""
        return next(
            (link for link in reversed(self._links.values()) if link.name == node and link.alive), None
        )

    def carry(
        self, source: SimulatedLink, target: SimulatedLink, take: Callable[..., None], *args: Any
    ) -> None:
        """Call `take` at the other end, after all that was sent before."""
        path = self._path(source, target)
        now = self.loop.time()
        if now < path.whole_at:
            self.lost += 1
            return
        arrival = max(now + self._latency(self._random), path.open_at, path.last_arrival)
        if arrival < path.clogged_until:
            arrival = max(arrival, path.last_arrival + CLOGGED_SECONDS)
        if arrival < target.slow_until:
            arrival = max(arrival, target.last_arrival + SLOW_SECONDS)
        path.last_arrival = target.last_arrival = arrival
        self.loop.call_at(
            path.last_arrival, self._arrive, path, path.life, target, take, args, context=target.context
        )

    def _arrive(
        self, path: _Path, life: int, target: SimulatedLink, take: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if life != path.life or not target.alive:
            self.lost += 1
        else:
            take(*args)

    def _path(self, source: SimulatedLink, target: SimulatedLink) -> _Path:
        key = (source.endpoint, target.endpoint)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = _Path()
        return path

    # Faults.

    # Each method returns the function that causes the fault, or None if there is nothing that it would strike.

    def clog(self, source: str, target: str, seconds: float) -> Callable[[], None] | None:
        """Slow down the path from one node to another for a while."""
        return self._for_a_while(source, target, "clogged_until", seconds)

    def cut(
        self, source: str, target: str, seconds: float, *, back: bool = False
    ) -> Callable[[], None] | None:
        """Cut the path from one node to another for a while; with `back`, also the way back."""
        there = self._for_a_while(source, target, "open_at", seconds)
        again = self._for_a_while(target, source, "open_at", seconds) if back else None
        if there is None or again is None:
            return there

        def both() -> None:
            there()
            again()

        return both

    def slow_down(self, node: str, seconds: float) -> Callable[[], None] | None:
        """Slow down what a node receives, from any sender."""
        link = self.life_of(node)
        return None if link is None else lambda: setattr(link, "slow_until", self.loop.time() + seconds)

    def _for_a_while(
        self, source: str, target: str, attribute: str, seconds: float
    ) -> Callable[[], None] | None:
        one, other = self.life_of(source), self.life_of(target)
        if one is None or other is None:
            return None
        path, until = self._path(one, other), self.loop.time() + seconds
        return lambda: setattr(path, attribute, max(getattr(path, attribute), until))

    def break_connection(self, source: str, target: str, seconds: float) -> Callable[[], None] | None:
        """Lose what is on its way between two nodes, and what is sent before the break is noticed.

        The node that made the connection is then told.
        """
        one, other = self.life_of(source), self.life_of(target)
        if one is None or other is None or one.peers.get(target) is not other:
            return None
        maker, peer = (one, other) if target in one.made else (other, one)
        return lambda: self._break(maker, peer, seconds)

    def _break(self, maker: SimulatedLink, peer: SimulatedLink, seconds: float) -> None:
        for path in (self._path(maker, peer), self._path(peer, maker)):
            path.life += 1
            path.whole_at = self.loop.time() + seconds
        if maker.on_broken is not None:
            delay = seconds + self._random.uniform(0.0, NOTICE_SECONDS_MAX)
            self.loop.call_later(delay, maker.on_broken, peer.name, peer.incarnation, context=maker.context)


class SimulatedLink:
    """A node's link in the network; the counterpart of `transport.zeromq.ZmqLink`."""

    def __init__(self, network: Network, name: str, incarnation: int, receiver: Receiver) -> None:
        self.name, self.incarnation = name, incarnation
        self.endpoint = f"sim://{name}/{incarnation}"
        self.issue: Callable[[str, bool], int | None] | None = None
        self.on_broken: Callable[[str, int], None] | None = None
        self.peers: dict[str, SimulatedLink] = {}
        self.made: set[str] = set()  # the peers that this one connected to
        self.slow_until = self.last_arrival = 0.0
        self.context: Context = copy_context()
        self._process: Process | None = PROCESS.get()
        self._network, self._receiver = network, receiver
        self._closed = False
        network.listen(self)

    @property
    def alive(self) -> bool:
        """Tell whether anything can reach it."""
        return not self._closed and not (self._process is not None and self._process.dead)

    def close(self) -> None:
        self._closed = True

    async def connect(self, node: str, incarnation: int, endpoint: str) -> Welcome:
        other = self._network.at(endpoint)
        welcome: asyncio.Future[SimulatedLink] = self._network.loop.create_future()
        if other is not None:
            self._network.carry(self, other, other._hear_hello, self, welcome)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                other = await welcome
        except TimeoutError:
            raise NoAnswer(f"{node} at {endpoint} did not answer within {HANDSHAKE_SECONDS:g} s") from None
        self.made.add(other.name)
        return Welcome(node=other.name, incarnation=other.incarnation, version=VERSION, fingerprint="")

    def _hear_hello(self, other: SimulatedLink, welcome: asyncio.Future[SimulatedLink]) -> None:
        known = self.peers.get(other.name)
        if known is not None and known.incarnation > other.incarnation:
            reason = f"{other.name}#{other.incarnation} has been replaced by #{known.incarnation}"
            self._network.carry(self, other, _refuse, welcome, LinkRefused(reason))
            return
        self._register(other)
        self._network.carry(self, other, other._hear_welcome, self, welcome)

    def _hear_welcome(self, other: SimulatedLink, welcome: asyncio.Future[SimulatedLink]) -> None:
        # A welcome that is done was cancelled with its connection.
        if not welcome.done():
            self._register(other)
            welcome.set_result(other)

    def _register(self, other: SimulatedLink) -> None:
        former = self.peers.get(other.name)
        self.peers[other.name] = other
        if former is not None and former is not other:
            self._receiver.replaced(other.name)
        self._network.loop.call_soon(self._receiver.met, other.name, context=self.context)

    def send(self, node: str, frames: Sequence[Any]) -> bool:
        other = self.peers.get(node)
        if other is None or self._closed:
            return False
        copied = [frame if isinstance(frame, bytes) else memoryview(frame).tobytes() for frame in frames]
        self._network.carry(self, other, other._take, self, copied)
        return True

    def _take(self, other: SimulatedLink, frames: list[bytes]) -> None:
        if self.peers.get(other.name) is not other:
            self._receiver.refuse(other.name, NOT_KNOWN)
            return
        self._network.trace.delivered(self._network.loop.time(), other.name, self.name, frames)
        self._receiver.receive(other.name, frames)

    def protocol_of(self, node: str) -> None:
        """Return None: all nodes of a simulation are of one version."""

    def is_linked(self, node: str) -> bool:
        return node in self.peers

    def forget(self, node: str, incarnation: int) -> bool:
        known = self.peers.get(node)
        if known is None or known.incarnation != incarnation:
            return known is None
        del self.peers[node]
        return True


def _refuse(welcome: asyncio.Future[SimulatedLink], error: LinkRefused) -> None:
    if not welcome.done():
        welcome.set_exception(error)
