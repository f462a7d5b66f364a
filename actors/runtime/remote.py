"""Conversations with actors on other nodes: envelopes to frames, correlation, cancellation, credit.

The asking node numbers its asks. The answering node keeps the asks that it works on, by (node, number). Streams
run on credit: the producer sends `credit` items, then waits for more credit.

A message from a new life of an actor may arrive before the directory that names that life, which comes another
way. Such a message waits for the directory: otherwise the receiver's answer would go to the former life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pageant.actors.runtime.held import Held
from pageant.actors.runtime.mailbox import Envelope
from pageant.actors.runtime.reading import Reader
from pageant.actors.runtime.remote_reply import RemoteReply
from pageant.actors.runtime.replies import Answer, Items
from pageant.actors.runtime.tracing import CURRENT
from pageant.actors.runtime.traffic import TrafficCounts
from pageant.protocol.codec import Codec
from pageant.protocol.envelope import FRAMES_MAX, Header, Mode, decode_header, encode_header
from pageant.protocol.errors import (
    MalformedEnvelope,
    PeerGone,
    ProtocolError,
)
from pageant.protocol.failure import Failure, error_of, failure_of
from pageant.protocol.message import Message
from pageant.protocol.supervision import ActorEntry
from pageant.protocol.tracing import TraceContext

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell
    from pageant.actors.runtime.node import Node
    from pageant.actors.runtime.platform import Link
    from pageant.protocol.compatibility import PeerProtocol


log = logging.getLogger("pageant.remote")


class _Asked:
    """An ask of this node that another node is working on."""

    __slots__ = ("actor", "incarnation", "node", "place", "reply")

    def __init__(self, place: ActorEntry, reply: Answer | Items) -> None:
        self.node, self.actor, self.incarnation = place.node, place.name, place.incarnation
        self.place, self.reply = place, reply


class Remote:
    """A node's conversations with other nodes, over its link. Everything here belongs to the node's loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._codec = Codec()
        # The link to other nodes; None before `connect` and after `close`.
        self._link: Link | None = None
        # The node of the supervisor.
        self.root = node.name
        # Asks of this node that are not answered yet, by number.
        self._asked: dict[int, _Asked] = {}
        # Asks of other nodes that are not answered yet, by asking node and its number. A key leaves when it is
        # answered or cancelled, or when the asking node is replaced.
        self._answering: dict[tuple[str, int], tuple[Cell, Envelope]] = {}
        # Messages whose senders the directory does not name yet, by sender.
        self._early: Held[tuple[Header, Message]] = Held()
        # Frames for nodes that are not linked yet, by node.
        self._unsent: Held[list[Any]] = Held()
        # The number of the next ask.
        self._next = 1
        self.sent = self.received = self.refused = 0
        # Counts messages and bytes by actor and kind.
        self.traffic = TrafficCounts()
        # The reason of the last envelope that could not be read.
        self.last_refusal = ""
        # Nodes whose unreadable envelopes have been logged once.
        self._complained: set[str] = set()
        self._reader = Reader(node.name, self._codec, self._protocol_of)

    def connect(self, link: Link, root: str) -> None:
        """Use `link` to reach other nodes from now on; the supervisor lives on `root`."""
        self._link, self.root = link, root

    def _protocol_of(self, node: str) -> PeerProtocol | None:
        return self._link.protocol_of(node) if self._link is not None else None

    def close(self) -> None:
        """End every conversation."""
        for asked in list(self._asked.values()):
            asked.reply.fail(PeerGone(f"this node stopped while {asked.actor} was asked"))
        self._asked.clear()
        self._link = None

    # Our side asks and tells.

    def tell(self, place: ActorEntry, message: Message, sender: Cell | None) -> None:
        """Send a message without an answer; a dead letter if its node cannot be reached."""
        header = self._header(Mode.TELL, place, message, sender)
        if not self._send(place.node, header, message):
            self._node.dead_letter("node unreachable", place.name, message)

    def ask(
        self,
        place: ActorEntry,
        request: Message,
        sender: Cell | None,
        reply: Answer | Items,
        deadline: float | None,
    ) -> Callable[[], None]:
        """Send an ask; its outcome goes to `reply`. Return the function that cancels it.

        Args:
            deadline: seconds of the node's clock; None sets none.
        """
        number, self._next = self._next, self._next + 1
        mode = Mode.STREAM if isinstance(reply, Items) else Mode.ASK
        timeout = None if deadline is None else max(0.0, deadline - self._node.clock.now())
        credit = reply.credit if isinstance(reply, Items) else 0
        header = self._header(mode, place, request, sender, number, timeout, credit, CURRENT.get())
        if isinstance(reply, Items):
            reply.on_taken = lambda count: self._grant(place.node, number, count)
        if self._send(place.node, header, request):
            self._asked[number] = _Asked(place, reply)
        else:
            reply.fail(PeerGone(f"{place.name} cannot be reached on {place.node}"))
        return lambda: self._cancel(number, place)

    def _grant(self, node: str, number: int, count: int) -> None:
        header = Header(Mode.CREDIT, "", "", "", correlation=number, credit=count)
        self._send_frames(node, [encode_header(header), b""])

    def _cancel(self, number: int, place: ActorEntry) -> None:
        if self._asked.pop(number, None) is not None:
            header = Header(Mode.CANCEL, "", place.name, "", correlation=number)
            self._send_frames(place.node, [encode_header(header), b""])

    def peer_gone(self, entry: ActorEntry) -> None:
        """Fail the asks of a life of an actor that ended."""
        for number, asked in list(self._asked.items()):
            if asked.actor == entry.name and asked.incarnation == entry.incarnation:
                del self._asked[number]
                asked.reply.fail(PeerGone(f"{entry.name} died before it answered"))

    def node_gone(self, node: str, incarnation: int) -> None:
        """Fail the asks of a life of a node that is over, and forget what it asked."""
        if self._link is not None and self._link.forget(node, incarnation):
            self.replaced(node)
            self.lost(node, len(self._unsent.take(node)))
        for number, asked in list(self._asked.items()):
            if asked.node == node:
                del self._asked[number]
                asked.reply.fail(PeerGone(f"{asked.actor} died with its node {node} before it answered"))

    def replaced(self, node: str) -> None:
        """Cancel the asks of a node's former life. The new life counts its asks from 1 again."""
        for key in [key for key in self._answering if key[0] == node]:
            cell, envelope = self._answering.pop(key)
            cell.cancel(envelope)

    def lost(self, node: str, envelopes: int) -> None:
        """Count envelopes that waited for a node when it went."""
        self._node.dead_letters["node unreachable"] += envelopes

    # Frames out.

    def _header(
        self,
        mode: Mode,
        place: ActorEntry,
        message: Message,
        sender: Cell | None,
        correlation: int = 0,
        timeout: float | None = None,
        credit: int = 0,
        trace: TraceContext | None = None,
    ) -> Header:
        return Header(
            mode,
            type(message).__name__,
            place.name,
            sender.name if sender is not None else f"node/{self._node.name}",
            correlation,
            place.incarnation,
            sender.incarnation if sender is not None else 0,
            timeout,
            None if trace is None else str(trace),
            credit,
        )

    def _send(self, node: str, header: Header, message: Message) -> bool:
        body, arrays = self._codec.encode(message)
        frames = [encode_header(header), body, *arrays]
        self.traffic.sent(header.sender, header.kind, frames)
        return self._send_frames(node, frames)

    def _send_frames(self, node: str, frames: list[Any]) -> bool:
        self.sent += 1
        link = self._link
        if link is None:
            return False
        waits = node in self._unsent  # what was sent before: it goes first
        if not waits and link.send(node, frames):
            return True
        return (waits or not link.is_linked(node)) and self._await_link(node, frames)

    def _await_link(self, node: str, frames: list[Any]) -> bool:
        """Keep frames for a node that is up and will link to this one when it learns of it."""
        return self._node.has_node(node) and self._unsent.add(node, frames)

    def met(self, node: str) -> None:
        """Send a node that was just linked the frames that waited for it."""
        for frames in self._unsent.take(node):
            if self._link is None or not self._link.send(node, frames):
                self.lost(node, 1)

    def send_outcome(self, node: str, number: int, mode: Mode, actor: str, message: Message | None) -> bool:
        """Send a handler's answer to an asker on another node."""
        kind = type(message).__name__ if message is not None else ""
        header = Header(mode, kind, "", actor, correlation=number)
        if message is None:
            return self._send_frames(node, [encode_header(header), b""])
        return self._send(node, header, message)

    def awaited(self, node: str, number: int, reply: RemoteReply) -> bool:
        """Tell whether the asker still wants this answer."""
        answering = self._answering.get((node, number))
        return answering is not None and answering[1].reply is reply

    def done(self, node: str, number: int) -> None:
        """Forget an ask of another node that is answered."""
        del self._answering[(node, number)]

    # Frames in.

    def receive(self, node: str, frames: Sequence[Any]) -> None:
        """Take in one envelope from a linked node. An envelope that does not decode is refused and counted."""
        self.received += 1
        header: Header | None = None
        try:
            if not 2 <= len(frames) <= FRAMES_MAX:
                raise MalformedEnvelope(f"an envelope has 2 to {FRAMES_MAX} frames, this one {len(frames)}")
            header = decode_header(frames[0])
            self._dispatch(node, header, frames)
            if header.kind:
                receiver = header.to if header.to in self._node.cells else f"node/{self._node.name}"
                self.traffic.received(receiver, header.kind, frames)
        except ProtocolError as error:
            self.refuse(node, str(error))
            if header is not None and header.mode in (Mode.ASK, Mode.STREAM):
                failure = failure_of(error, header.to)
                self.send_outcome(node, header.correlation, Mode.ERROR, header.to, failure)

    def refuse(self, node: str, reason: str) -> None:
        """Count an envelope that could not be read. The first one of a linked node is logged, too."""
        self.refused += 1
        self.last_refusal = f"from {node}: {reason}"
        if self._link is not None and self._link.is_linked(node) and node not in self._complained:
            self._complained.add(node)
            log.warning("%s cannot read what node %s sends: %s", self._node.name, node, reason)

    def _dispatch(self, node: str, header: Header, frames: Sequence[Any]) -> None:
        match header.mode:
            case Mode.TELL | Mode.ASK | Mode.STREAM:
                self._incoming(node, header, frames)
            case Mode.REPLY | Mode.ITEM | Mode.END | Mode.ERROR:
                self._outcome(node, header, frames)
            case Mode.CANCEL:
                answering = self._answering.pop((node, header.correlation), None)
                if answering is not None:
                    cell, envelope = answering
                    cell.cancel(envelope)
            case Mode.CREDIT:
                answering = self._answering.get((node, header.correlation))
                if answering is not None and isinstance(answering[1].reply, RemoteReply):
                    answering[1].reply.grant(header.credit)
            case _:
                raise MalformedEnvelope(f"mode {header.mode.name} is not for an actor")

    def _incoming(self, node: str, header: Header, frames: Sequence[Any]) -> None:
        message = self._reader.decode(node, header.kind, frames)
        reply: RemoteReply | None = None
        if header.mode is not Mode.TELL:
            streams = header.mode is Mode.STREAM
            reply = RemoteReply(self, node, header.correlation, header.to, streams, header.credit)
            self._deliver_early(header.sender, header.to)
        elif self._is_early(header):
            self._hold(header, message)
            return
        self._give(node, header, message, reply)

    def _give(self, node: str, header: Header, message: Message, reply: RemoteReply | None) -> None:
        cell = self._node.cells.get(header.to)
        if cell is None or header.to_incarnation not in (0, cell.incarnation):
            if cell is not None:
                cell.count_stale()
            self._undeliverable(node, header, message)
            return
        if self._is_stale(header):
            cell.count_stale()
            return
        trace = TraceContext.parse(header.trace) if header.trace is not None else None
        envelope = Envelope(message, header.sender, header.from_incarnation, reply, trace)
        if reply is not None:
            self._answering[(node, header.correlation)] = (cell, envelope)
        cell.deliver(envelope)

    def _is_early(self, header: Header) -> bool:
        """Tell whether this node does not know yet that this life of the sender is up.

        Reports to the runtime's own actors are never early: they make lives known.
        """
        ends = (header.sender, header.to)
        if any(end == "supervisor" or end.startswith("node/") for end in ends):
            return False
        entry = self._node.entry(header.sender)
        if entry is None:
            return True
        # A sender that is down for good will never be up.
        if entry.final:
            return False
        return (header.from_incarnation, False) >= (entry.incarnation, entry.up)

    def _hold(self, header: Header, message: Message) -> None:
        if not self._early.add(header.sender, (header, message)):
            self._node.dead_letter("sender not known yet", header.to, message)

    def _deliver_early(self, sender: str, receiver: str) -> None:
        """Deliver early messages of an asker to this receiver, before its ask.

        An ask does not wait for the directory: an actor that asks while it starts is not up before it is
        answered. It must not overtake messages that were sent before it.
        """
        for header, message in self._early.take(sender):
            if header.to == receiver:
                self._give("", header, message, None)
            else:
                self._hold(header, message)

    def directory_changed(self) -> None:
        """Deliver early messages, in order, whose senders are known now."""
        for sender in [sender for sender, (first, _) in self._early.firsts() if not self._is_early(first)]:
            for header, message in self._early.take(sender):
                if self._is_early(header):
                    self._hold(header, message)
                else:
                    self._give("", header, message, None)

    def _undeliverable(self, node: str, header: Header, message: Message) -> None:
        if header.mode is Mode.TELL:
            self._node.dead_letter("actor moved", header.to, message)
        else:
            failure = failure_of(PeerGone(f"{header.to} is not on this node any more"), header.to)
            self.send_outcome(node, header.correlation, Mode.ERROR, header.to, failure)

    def _is_stale(self, header: Header) -> bool:
        """Tell whether the sender has been replaced, or is down for good, since it sent this."""
        entry = self._node.entry(header.sender)
        return entry is not None and 0 < header.from_incarnation < entry.incarnation + entry.final

    def _outcome(self, node: str, header: Header, frames: Sequence[Any]) -> None:
        asked = self._asked.get(header.correlation)
        if asked is None or asked.node != node:
            # The ask was cancelled, or its deadline has passed.
            return
        try:
            message = self._reader.decode(node, header.kind, frames) if header.kind else None
        except ProtocolError as error:
            self._cancel(header.correlation, asked.place)
            asked.reply.fail(error)
            raise
        if header.mode is Mode.ITEM and isinstance(asked.reply, Items):
            asked.reply.push(message)
            return
        del self._asked[header.correlation]
        if header.mode is Mode.ERROR and isinstance(message, Failure):
            asked.reply.fail(error_of(message))
        elif header.mode is Mode.END:
            asked.reply.end()
        else:
            asked.reply.resolve(message)
