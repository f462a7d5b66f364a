"""Instructions of the root supervisor's core, which its actor carries out."""

from __future__ import annotations

from dataclasses import dataclass

from pageant.protocol.supervision import StartActor

__all__ = ["Dismiss", "Fence", "GiveUp", "Instruction", "Launch", "Publish", "Start", "Stop"]


@dataclass(frozen=True)
class Launch:
    """Start the process of a node."""

    node: str
    incarnation: int


@dataclass(frozen=True)
class Start:
    """Have a node's agent start an actor."""

    node: str
    order: StartActor


@dataclass(frozen=True)
class Stop:
    """Have a node's agent end a life of an actor, since its group has fallen or it has left the topology."""

    node: str
    name: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Report that an actor or a node (`who`) will not be started again."""

    who: str
    deaths: int
    error: str
    traceback: str


@dataclass(frozen=True)
class Fence:
    """Kill the process of a node whose lease is over: it may be stopped, and wake at any time."""

    node: str
    incarnation: int
    reason: str


@dataclass(frozen=True)
class Publish:
    """Send every node the present directory."""


@dataclass(frozen=True)
class Dismiss:
    """End a node's process for good: the node has left the topology."""

    node: str


Instruction = Launch | Start | Stop | Dismiss | GiveUp | Fence | Publish
