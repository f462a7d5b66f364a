"""root supervisor ◀──▶ node agents: which actor lives where, who starts and stops it, and how it died.

    node/X ──NodeJoined──▶ supervisor ──StartActor──▶ node/X ──ActorStarted / ActorFailed──▶ supervisor
    supervisor ──Directory──▶ node/*      after every change, whole: which actor lives where, with its
                                          incarnation. Nodes tell their watchers `ActorUp` and `ActorDown`.
    node/X ──ActorFailed──▶ supervisor    whenever an actor of X crashes
    node/X ──RenewLease──▶ supervisor ──LeaseGranted──▶ node/X      once per heartbeat
    supervisor ──StopActor──▶ node/X ──ActorStopped──▶ supervisor      when another member of the actor's group has died
    supervisor ──StopNode──▶ node/*       at the end

    actor ──ActorChanged──▶ supervisor    an actor that is up has new facts; watchers with a handler are told

Only the root supervisor issues incarnations.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.message import Message, Request

Fact = int | str | dict[str, str]
Facts = dict[str, Fact]
"""Facts that an actor published, by name."""


class ActorUp(Message, frozen=True, kw_only=True):
    """Tell a watcher that this actor is up, with this incarnation."""

    address: str
    incarnation: int
    features: tuple[str, ...] = ()
    facts: Facts = msgspec.field(default_factory=dict)
    """See `ActorStarted`."""


class ActorChanged(Message, frozen=True, kw_only=True):
    """Facts of an actor have changed; the message has all of them as they are now.

    The actor tells the supervisor, and those watchers that have a handler.
    """

    address: str
    incarnation: int
    facts: Facts


# The reason of an end that was asked for and is nobody's fault.
SWAPPED = "swapped"
# The reason of an end with which an actor leaves the topology.
REMOVED = "removed"


class ActorDown(Message, frozen=True, kw_only=True):
    """Tell a watcher that this incarnation of an actor is gone."""

    address: str
    incarnation: int
    reason: str
    """How it ended."""
    final: bool = False
    """It will not be started again."""


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the topology."""

    name: str
    incarnation: int
    endpoint: str
    """The address that it listens on."""
    pid: int = 0
    """Its process; 0 if not known."""


class ActorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor of the topology."""

    name: str
    node: str
    incarnation: int
    up: bool
    """False while it starts or is down."""
    features: tuple[str, ...] = ()
    reason: str = ""
    """Why it is down."""
    final: bool = False
    """It will not be started again."""
    restarts: int = 0
    facts: Facts = msgspec.field(default_factory=dict)
    """See `ActorStarted`."""


class Directory(Message, frozen=True, kw_only=True):
    """All nodes and actors, as of `version`."""

    version: int
    nodes: tuple[NodeEntry, ...]
    actors: tuple[ActorEntry, ...]


class NodeJoined(Message, frozen=True, kw_only=True):
    """A node process is up and linked to the root."""

    node: str
    incarnation: int
    endpoint: str
    pid: int
    devices: tuple[str, ...] = ()
    """The devices that its actors could compute on."""


class StartActor(Message, frozen=True, kw_only=True):
    """Start an actor of this name."""

    name: str
    incarnation: int
    cls: str
    """`module:Class`."""
    options: bytes
    """Its `Options` as JSON. The node validates them."""
    folder: str = ""
    """Where its module is looked for, too, after everywhere else; "" is nowhere."""


class StopActor(Message, frozen=True, kw_only=True):
    """End this life of an actor in order."""

    name: str
    incarnation: int
    reason: str


class ActorStopped(Message, frozen=True, kw_only=True):
    """A life that was ordered to end is over, and its process can have the next one.

    It is not sent by a process that ends with the actor.
    """

    name: str
    incarnation: int


class ActorStarted(Message, frozen=True, kw_only=True):
    """An actor has finished `on_start` and takes messages."""

    name: str
    incarnation: int
    features: tuple[str, ...]
    facts: Facts = msgspec.field(default_factory=dict)
    """Facts that the actor found while it started, for its watchers (see `Actor.facts`)."""


class ActorFailed(Message, frozen=True, kw_only=True):
    """An actor died."""

    name: str
    incarnation: int
    error: str
    """The exception, in one line."""
    traceback: str
    started: bool
    """It had been ready."""
    permanent: bool = False
    """Another start would fail the same way."""
    ends_process: bool = False
    """The process of the actor's node ends too, by itself: nothing else can start there."""


class DeathsCharged(Message, frozen=True, kw_only=True):
    """An actor's recent deaths are charged to the requests that it was working for.

    A request that kills is ended after a few deaths. The actor is not at fault: these deaths do not count
    towards its own limit, or its node's.
    """

    name: str
    deaths: int = 1


class Progress(Message, frozen=True, kw_only=True):
    """An actor tells how far a long part of its start is: `done` of `total`, in `unit`."""

    name: str
    what: str
    done: int
    total: int
    unit: str = ""


class RenewLease(Message, frozen=True, kw_only=True):
    """A node reports that it lives."""

    node: str
    incarnation: int
    number: int
    """Counts these messages."""
    taken: int = 0
    """The number of the last lease that it received."""


class LeaseGranted(Message, frozen=True, kw_only=True):
    """A node's lease runs for `seconds` from the time at which it sent that `number`."""

    number: int
    seconds: float
    heartbeat: float
    """Seconds between the renewals that are expected of the node."""


class StopNode(Message, frozen=True, kw_only=True):
    """Stop all actors of a node, then its process."""

    reason: str = ""


class NodeStatistics(Message, frozen=True, kw_only=True):
    """A node's counters."""

    node: str
    pid: int
    delivered: int
    sent: int
    received: int
    refused: int
    dead_letters: dict[str, int]
    actors: dict[str, ActorStatistics]
    cpu_seconds: float = 0.0
    """User and system time of its process."""
    resident_bytes: int = 0
    """Memory of its process."""
    traffic: tuple[Traffic, ...] = ()
    """Messages that its actors exchanged with other nodes."""


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor's counters."""

    incarnation: int
    mailbox_depth: int
    mailbox_depth_max: int
    handled: int
    seconds: float
    """Time spent in its handlers."""
    stale: int
    tasks: int
    kinds: dict[str, Handled] = msgspec.field(default_factory=dict)
    """Messages and seconds by kind of message."""


class Handled(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Messages of a kind that an actor handled, and the seconds that it took."""

    count: int
    seconds: float


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of one kind between an actor and other nodes, and their bytes with all frames."""

    actor: str
    kind: str
    sent: int
    sent_bytes: int
    received: int
    received_bytes: int


class GetStatistics(Request[NodeStatistics], frozen=True, kw_only=True):
    """Ask a node agent for its node's counters."""


class Swapped(Message, frozen=True, kw_only=True):
    """An actor's state after a swap."""

    incarnation: int
    """The actor's present life."""
    error: str = ""
    """Why it still has its former class and options; "" if the swap succeeded."""
    died: bool = False
    """The successor's process ended while it started, without an error of its own."""


class SwapActor(Request[Swapped], frozen=True, kw_only=True):
    """Ask the supervisor to replace an actor's class or options. A successor that cannot start is rolled
    back.
    """

    name: str
    cls: str = ""
    """`module:Class`; "" keeps the class."""
    options: str = ""
    """A JSON object, laid over the present options."""
    folder: str = ""
    """Where the module of `cls` is looked for, too: the folder of whoever asks."""


class ActorAmended(Message, frozen=True, kw_only=True):
    """The options (a JSON object) with which an actor's next life begins."""

    options: str


class AmendActor(Request[ActorAmended], frozen=True, kw_only=True):
    """Ask the supervisor to lay options (a JSON object) over those of an actor, for its next life.

    The actor's present life goes on; whoever asks must tell it of the change.
    """

    name: str
    options: str


class ReplicaChanged(Message, frozen=True, kw_only=True):
    """The prefix of the replica that was added, marked or removed."""

    prefix: str


class AddReplicaActors(Request[ReplicaChanged], frozen=True, kw_only=True):
    """Ask the supervisor to start the actors of another replica of the model with this prefix."""

    model: str
    number: int | None = None
    """The replica's; None is the lowest that is free. One that is there stays as it is."""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """JSON objects by the names of its actors within it, each laid over the actor's options."""


class MarkReplica(Request[ReplicaChanged], frozen=True, kw_only=True):
    """Ask the supervisor to tell everybody how far a replica is being drained."""

    prefix: str
    draining: int
    """See `pageant.protocol.replicas.DRAINING`; 0 ends it."""


class RemoveReplicaActors(Request[ReplicaChanged], frozen=True, kw_only=True):
    """Ask the supervisor to end the actors of a replica for good, with the processes that were theirs alone."""

    prefix: str


class GetDirectory(Request[Directory], frozen=True, kw_only=True):
    """Ask the supervisor for all nodes and actors."""


class NodeExited(Message, frozen=True, kw_only=True):
    """A launcher tells the supervisor that a node's process ended."""

    node: str
    incarnation: int
    reason: str
    traceback: str = ""
    """The last traceback of the process, if it left one."""


class Startup(Message, frozen=True, kw_only=True):
    """Progress of a topology's start. The last message has `ready`, or `error` with the `traceback`."""

    progress: Progress | None = None
    ready: bool = False
    error: str = ""
    traceback: str = ""


class WatchStartup(Request[Startup], frozen=True, kw_only=True):
    """Stream the progress of the start from the supervisor, until everything is up or has failed."""
