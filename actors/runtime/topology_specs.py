"""Entries of a topology as its user writes them: launchers, nodes and actors."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class LauncherSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A launcher as written: `module:Class`, and the keyword arguments of its constructor."""

    cls: str = msgspec.field(name="class")
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node as written. `like` names a node whose other keys it takes over."""

    process: bool = False
    host: str | None = None
    device: str | None = None
    launcher: str | LauncherSpec | None = None
    like: str | None = None


class ActorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An actor, or a group of `count`, as written."""

    cls: str | None = msgspec.field(name="class", default=None)
    node: str | None = None
    nodes: tuple[str, ...] | None = None
    host: str | None = None
    device: str | None = None
    count: int | None = None
    each: Literal["host"] | None = None
    """One on each host that has executors, instead of a number of them."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
