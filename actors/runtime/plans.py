"""What a resolved topology consists of: the plans of its actors and of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageant.actors.runtime.launcher import LauncherPlan


@dataclass(frozen=True)
class ActorPlan:
    """An actor of the resolved topology. `options` is JSON. With a `device` it lives on whichever of the nodes that
    join by themselves has such a one, and nobody on it; `node` is "" until there is one. The module of the class may
    stand in `folder`."""

    name: str
    node: str
    cls: str
    options: bytes
    device: str | None = None
    folder: str = ""


@dataclass(frozen=True)
class NodePlan:
    """A node of the resolved topology: this process, a child process, or one that joins by itself."""

    name: str
    process: bool = False
    joins: bool = False
    launcher: LauncherPlan | None = None  # of its own
    device: str | None = None  # that it must have; see `devices`

    @property
    def may_be_far(self) -> bool:
        """Whether it may be on another host, and then listens where other hosts reach it."""
        return self.joins or self.launcher is not None
