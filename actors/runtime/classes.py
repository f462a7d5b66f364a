"""Loading of classes that a YAML file names as `module:Class`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pageant.actors.runtime.actor import Actor
from pageant.protocol.checks import expected
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import load_plugin, plugins_of


def look_in(folder: str | Path) -> None:
    """Find modules in a folder, too, for the rest of this process's life: after everywhere else."""
    path = os.path.abspath(folder)
    if path not in map(os.path.abspath, sys.path):
        sys.path.append(path)
        importlib.invalidate_caches()


def load_object(name: str, place: str, group: str = "") -> Any:
    """Return the object that `module:name` names, or a plugin.

    Args:
        group: of plugins that a name without a colon may mean; "" is none.

    Raises:
        TopologyError: there is no such module, name or plugin; the message has the nearest known one.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon and group and (found := load_plugin(group, name)) is not None:
        return found
    if not colon or not module_name or not attribute:
        known = ", ".join(plugins_of(group)) if group else ""
        raise TopologyError(
            place,
            f"found {name!r}; expected module:Class, such as my_lab.policies:MyScheduler"
            + (f", or a plugin: {known}" if known else ""),
        )
    try:
        module = (
            _of_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
        )
    except FileNotFoundError:
        raise TopologyError(place, f"there is no file {module_name!r} (for {name!r})") from None
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise TopologyError(
                place, f"there is no module {error.name!r} here or installed (for {name!r})"
            ) from None
        raise TopologyError(place, f"importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise TopologyError(
            place, f"importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        names = [known for known in vars(module) if not known.startswith("_")]
        raise TopologyError(place, f"{module_name!r} has no {attribute!r}; {expected(attribute, names)}")
    return found


def _of_file(path: str) -> ModuleType:
    """Return the module in a file, which is executed once in a process, and not as `__main__`."""
    file = Path(path).absolute()
    digest = hashlib.blake2b(str(file).encode(), digest_size=6).hexdigest()
    name = f"pageant_file_{file.stem}_{digest}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def load_actor_class(name: str, place: str, folder: str = "") -> type[Actor]:
    """Return the actor class that `module:Class` or a plugin's name stands for.

    Raises:
        TopologyError: see `load_object`; or it is not an actor class.
    """
    if folder:
        look_in(folder)
    found = load_object(name, place, "actors")
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise TopologyError(place, f"{name!r} is not a subclass of pageant.actors.runtime.Actor")
    return found


def decode_options(cls: type[Actor], data: bytes, place: str) -> Any:
    """Decode an actor's options from JSON.

    Raises:
        TopologyError: an option is unknown or ill-typed; names it.
    """
    try:
        return msgspec.json.decode(data, type=cls.Options)
    except (msgspec.ValidationError, ValueError) as error:
        raise TopologyError(place, str(error)) from None
