"""Paths of modules as they were before a room moved: a user's topology or script may still name them."""

from __future__ import annotations

from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MOVED = {
    "pageant.actors.frontend.http.parsers": "pageant.actors.parsers",
    "pageant.actors.frontend.http": "pageant.actors.http",
    "pageant.actors.frontend": "pageant.actors.client",
}
"""New packages by their old names, the longest first. A module that is still in the old package is found there."""


class _Alias(Loader):
    """Loads a module under a second name, as the same module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the second name's in its place


class _OldPackage(Loader):
    """Loads an empty package, so that its modules are looked up here and not loaded twice."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        return None


def spec_of(name: str) -> ModuleSpec | None:
    """Return how to import a module by an old name; None where the name is no such one."""
    for old, new in MOVED.items():
        if name == old or name.startswith(old + "."):
            path = new + name.removeprefix(old)
            found = find_spec(path)
            if found is None:
                return None
            if found.submodule_search_locations is not None:
                return ModuleSpec(name, _OldPackage(), is_package=True)
            return ModuleSpec(name, _Alias(path))
    return None
