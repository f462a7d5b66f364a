"""Plans of actors and nodes: the parts of a resolved topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageant.actors.runtime.launcher import LauncherPlan


@dataclass(frozen=True)
class ActorPlan:
    """An actor of the resolved topology."""

    name: str
    node: str
    """The node that hosts it; "" until a node with its `device` has joined."""
    cls: str
    options: bytes
    """A JSON object."""
    device: str | None = None
    """Places the actor on whichever node that joins by itself has such a device free."""
    folder: str = ""
    bound: str = ""
    """The group that it falls and rises with, as one; "" for an actor that lives by itself."""


@dataclass(frozen=True)
class NodePlan:
    """A node of the resolved topology: this process, a child process, or one that joins by itself."""

    name: str
    process: bool = False
    joins: bool = False
    launcher: LauncherPlan | None = None
    """The node's own launcher, if any."""
    device: str | None = None
    """The device that it must have; see `devices`."""

    @property
    def may_be_far(self) -> bool:
        """Tell whether the node may be on another host; it then listens where other hosts reach it."""
        return self.joins or self.launcher is not None
