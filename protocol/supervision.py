"""root supervisor ◀──▶ node agents: who lives where, who starts and stops what, who died of what.

    node/X ──NodeJoined──▶ supervisor ──StartActor──▶ node/X ──ActorStarted / ActorFailed──▶ supervisor
    supervisor ──Directory──▶ node/*      after every change, whole: which actor lives where, with its
                                          incarnation. Nodes tell their watchers `ActorUp` and `ActorDown`.
    node/X ──ActorFailed──▶ supervisor    whenever an actor of X crashes
    node/X ──RenewLease──▶ supervisor ──LeaseGranted──▶ node/X      once per heartbeat
    supervisor ──StopNode──▶ node/*       at the end

    actor ──ActorChanged──▶ supervisor    an actor that is up has other facts; watchers that take it are told

The root supervisor alone issues incarnations.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.message import Message, Request

Fact = int | str | dict[str, str]
Facts = dict[str, Fact]
"""What an actor found out, by name."""


class ActorUp(Message, frozen=True, kw_only=True):
    """To a watcher: this actor is there, with this incarnation."""

    address: str
    incarnation: int
    features: tuple[str, ...] = ()
    facts: Facts = msgspec.field(default_factory=dict)
    """See `ActorStarted`."""


class ActorChanged(Message, frozen=True, kw_only=True):
    """An actor has other facts than when it came up; all of them as they are now.

    Told by the actor to the supervisor, and to those watchers that have a handler for it.
    """

    address: str
    incarnation: int
    facts: Facts


SWAPPED = "swapped"  # as a reason: an end that was asked for, and is nobody's fault


class ActorDown(Message, frozen=True, kw_only=True):
    """To a watcher: that incarnation of this actor is gone. `final`: it will not be started again."""

    address: str
    incarnation: int
    reason: str
    final: bool = False


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the topology, its process, and where it listens."""

    name: str
    incarnation: int
    endpoint: str
    pid: int = 0


class ActorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor of the topology. `up` is False while it starts, or is down (`reason` says why)."""

    name: str
    node: str
    incarnation: int
    up: bool
    features: tuple[str, ...] = ()
    reason: str = ""
    final: bool = False
    restarts: int = 0
    facts: Facts = msgspec.field(default_factory=dict)
    """See `ActorStarted`."""


class Directory(Message, frozen=True, kw_only=True):
    """Everybody, as of `version`."""

    version: int
    nodes: tuple[NodeEntry, ...]
    actors: tuple[ActorEntry, ...]


class NodeJoined(Message, frozen=True, kw_only=True):
    """A node process is up and linked to the root. `devices` are what its actors could compute on."""

    node: str
    incarnation: int
    endpoint: str
    pid: int
    devices: tuple[str, ...] = ()


class StartActor(Message, frozen=True, kw_only=True):
    """Start `module:Class` under this name. `options` are its `Options`, as JSON, validated there."""

    name: str
    incarnation: int
    cls: str
    options: bytes


class ActorStarted(Message, frozen=True, kw_only=True):
    """`on_start` is done; the actor takes messages."""

    name: str
    incarnation: int
    features: tuple[str, ...]
    facts: Facts = msgspec.field(default_factory=dict)
    """What the actor found out while it started, for whoever watches it (see `Actor.facts`)."""


class ActorFailed(Message, frozen=True, kw_only=True):
    """An actor died: of `error` (one line), with its own `traceback`.

    `started` says whether it had been ready. `permanent` says that another start would fail the same way.
    """

    name: str
    incarnation: int
    error: str
    traceback: str
    started: bool
    permanent: bool = False


class DeathsCharged(Message, frozen=True, kw_only=True):
    """An actor died `deaths` times, lately, while it was at work for requests, which are charged with that.

    A request that kills is ended after a few deaths. The actor is not at fault: these deaths do not count towards
    giving it, or its node, up.
    """

    name: str
    deaths: int = 1


class Progress(Message, frozen=True, kw_only=True):
    """An actor tells how far a long piece of its start is: `done` of `total`, in `unit`."""

    name: str
    what: str
    done: int
    total: int
    unit: str = ""


class RenewLease(Message, frozen=True, kw_only=True):
    """A node lives. `number` counts these; `taken` is that of the last lease that it has heard of."""

    node: str
    incarnation: int
    number: int
    taken: int = 0


class LeaseGranted(Message, frozen=True, kw_only=True):
    """From when it sent that `number`, a node's lease runs for so many `seconds`. It is to be heard of once per
    `heartbeat` (seconds)."""

    number: int
    seconds: float
    heartbeat: float


class StopNode(Message, frozen=True, kw_only=True):
    """Stop all actors of a node, then its process."""

    reason: str = ""


class NodeStatistics(Message, frozen=True, kw_only=True):
    """A node's counters. `cpu_seconds` is user and system time of its process, `resident_bytes` its memory.

    `traffic` is what its actors exchanged with other nodes.
    """

    node: str
    pid: int
    delivered: int
    sent: int
    received: int
    refused: int
    dead_letters: dict[str, int]
    actors: dict[str, ActorStatistics]
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    traffic: tuple[Traffic, ...] = ()


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor's counters. `seconds` is time spent in its handlers; `kinds` divides both by kind of message."""

    incarnation: int
    mailbox_depth: int
    mailbox_depth_max: int
    handled: int
    seconds: float
    stale: int
    tasks: int
    kinds: dict[str, Handled] = msgspec.field(default_factory=dict)


class Handled(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many messages of a kind an actor handled, and in how many seconds."""

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
    """The actor lives, with that incarnation; `error` says why it is of its former class and options. `died`: its
    successor's process ended while it started, and no error of its own is known."""

    incarnation: int
    error: str = ""
    died: bool = False


class SwapActor(Request[Swapped], frozen=True, kw_only=True):
    """Ask the supervisor to go on with another class (`module:Class`; "" keeps it) or other options (a JSON object,
    laid over the present ones). One that cannot start gives way to what was there before."""

    name: str
    cls: str = ""
    options: str = ""


class ActorAmended(Message, frozen=True, kw_only=True):
    """The next life of an actor begins with these options (a JSON object)."""

    options: str


class AmendActor(Request[ActorAmended], frozen=True, kw_only=True):
    """Ask the supervisor to lay options (a JSON object) over those of an actor, for its next life. Its present life
    goes on; whoever asks tells it what has changed."""

    name: str
    options: str


class GetDirectory(Request[Directory], frozen=True, kw_only=True):
    """Ask the supervisor who is there."""


class NodeExited(Message, frozen=True, kw_only=True):
    """A launcher to the supervisor: the process of that incarnation of a node ended; with its last `traceback`, if
    it left one."""

    node: str
    incarnation: int
    reason: str
    traceback: str = ""


class Startup(Message, frozen=True, kw_only=True):
    """How far the start of a topology is. The last one has `ready`, or `error` with the `traceback`."""

    progress: Progress | None = None
    ready: bool = False
    error: str = ""
    traceback: str = ""


class WatchStartup(Request[Startup], frozen=True, kw_only=True):
    """Stream from the supervisor: progress until everything is up, or cannot be."""
