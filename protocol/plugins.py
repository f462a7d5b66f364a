"""Plugins: what installed packages add under short names, through entry points.

A package declares them in its pyproject.toml:

    [project.entry-points."pageant.policies"]
    coin = "my_lab.policies:Coin"

The environment variable PAGEANT_PLUGINS, if it is set, lists the packages whose plugins count, separated by commas;
`none` switches all off. Nothing of a plugin is imported before it is named.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pageant.protocol.errors import TopologyError

__all__ = ["GROUPS", "PLUGINS", "Plugin", "load_plugin", "plugins", "plugins_of"]

GROUPS = ("actors", "policies", "routing", "architectures", "parsers", "launchers", "formats", "carriers")
"""Kinds of plugins. The entry points' group is `pageant.` and one of these."""
PLUGINS = "PAGEANT_PLUGINS"
_ALL_OFF = "none"


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed package."""

    group: str
    name: str
    """What a topology, a checkpoint's configuration or an option calls it."""
    target: str
    """`module:attribute`."""
    package: str
    version: str

    def load(self) -> Any:
        """Import the module and return the object.

        Raises:
            TopologyError: that fails; names the package.
        """
        point = importlib.metadata.EntryPoint(self.name, self.target, f"pageant.{self.group}")
        try:
            return point.load()
        except Exception as error:
            raise TopologyError(
                f"plugin {self.name!r} of {self.package} {self.version}",
                f"loading {self.target} failed: {type(error).__name__}: {error}",
            ) from error


def plugins() -> tuple[Plugin, ...]:
    """Return the plugins of all groups that are installed and not switched off, in the order of their names."""
    return _plugins(os.environ.get(PLUGINS))


def plugins_of(group: str) -> Mapping[str, Plugin]:
    """Return a group's plugins by their names. Of two with one name, that of the first package counts."""
    return {one.name: one for one in reversed(plugins()) if one.group == group}


def load_plugin(group: str, name: str) -> Any | None:
    """Return the object that a plugin's name stands for; None where there is none of that name.

    Raises:
        TopologyError: it cannot be loaded.
    """
    plugin = plugins_of(group).get(name)
    return None if plugin is None else plugin.load()


@functools.cache
def _plugins(wanted: str | None) -> tuple[Plugin, ...]:
    names = None if wanted is None else {_normal(name) for name in wanted.split(",")}
    if names == {_ALL_OFF}:
        return ()
    found = [
        Plugin(group, point.name, point.value, point.dist.name, point.dist.version)
        for group in GROUPS
        for point in importlib.metadata.entry_points(group=f"pageant.{group}")
        if point.dist is not None and (names is None or _normal(point.dist.name) in names)
    ]
    return tuple(sorted(found, key=lambda one: (GROUPS.index(one.group), one.name, one.package)))


def _normal(name: str) -> str:
    """Return a package's name in the form in which two names of one package are equal."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
