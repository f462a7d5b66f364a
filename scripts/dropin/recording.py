"""Reads from vLLM's tests which servers they start: a model, flags and environment of each `RemoteOpenAIServer`.

    python -m pageant.scripts.dropin.recording FOLDER FILE.json

The tests themselves are not run. Each module is executed with stand-ins for everything that it imports but the
standard library, and each function that starts a server is called up to the place where it does, once for each of
its parameters. That needs no vLLM, and gives the flags as they are written.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pageant.scripts.dropin.stand_ins import (
    FOUND,
    SERVER,
    STAND_INS,
    UNKNOWN,
    Anything,
    Launch,
    Launched,
    module_of,
    values_of,
)

CALL_SECONDS = 5


class Tests:
    """The test modules below a folder, executed with stand-ins."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[Path, dict[str, Any]] = {}

    def module(self, path: Path) -> dict[str, Any]:
        """Return the names of a module; those that it came to where it failed."""
        if path in self._modules:
            return self._modules[path]
        module = types.ModuleType(".".join(path.relative_to(self.root).with_suffix("").parts))
        sys.modules[module.__name__] = module  # where classes look for the names in their annotations
        names = vars(module)
        names["__file__"] = str(path)
        names["__builtins__"] = {**vars(builtins), "__import__": self._importer(path)}
        self._modules[path] = names
        if path == self.root / "utils.py":
            names["VLLM_PATH"] = self.root.parent
            return names
        try:
            exec(compile(path.read_text(), str(path), "exec"), names)
        except Exception as error:
            print(f"{path.relative_to(self.root)}: {type(error).__name__}: {error}", file=sys.stderr)
        return names

    def _importer(self, path: Path) -> Callable[..., Any]:
        def load(name: str, names: Any = None, _: Any = None, wanted: Any = (), level: int = 0) -> Any:
            top = name.partition(".")[0]
            if level == 0 and name in STAND_INS:
                return STAND_INS[name]
            if level == 0 and top in sys.stdlib_module_names:
                return builtins.__import__(name, None, None, wanted or (), 0)
            found = self._own(path, name, level)
            return module_of(name, found or {}, wanted or ())

        return load

    def _own(self, path: Path, name: str, level: int) -> dict[str, Any] | None:
        """The names of a module of the tests; None for any other."""
        if level:
            base = path.parents[level - 1]
        elif name.startswith("tests."):
            base, name = self.root, name.removeprefix("tests.")
        else:
            return None
        file = base.joinpath(*name.split(".")).with_suffix(".py") if name else base / "__init__.py"
        return self.module(file) if file.is_file() else None

    def fixtures(self, path: Path) -> dict[str, Any]:
        """Return the fixtures that a module's functions can ask for, by name."""
        found: dict[str, Any] = {}
        for folder in [*reversed(path.relative_to(self.root).parents)]:
            conftest = self.root / folder / "conftest.py"
            if conftest.is_file() and conftest != path:
                found |= _fixtures(self.module(conftest))
        return found | _fixtures(self.module(path))

    def launches(self, path: Path) -> list[Launch]:
        """Return each server that a module's functions start."""
        FOUND.clear()
        names = self.module(path)
        fixtures = self.fixtures(path)
        for function in _functions(names, path):
            for choice in _choices(function, fixtures, names):
                try:
                    _bounded(functools.partial(_call, function, choice, fixtures))
                except Launched:
                    pass
                except Exception as error:
                    where = f"{path.relative_to(self.root)}: {function.__name__}"
                    print(f"{where}: {type(error).__name__}: {error}", file=sys.stderr)
        return list(FOUND)


def _fixtures(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in names.items() if inspect.isroutine(one) and hasattr(one, "fixture")}


def _functions(names: Mapping[str, Any], path: Path) -> list[Any]:
    """The functions of a module that start a server themselves, methods of its classes among them."""
    holders = [names, *(vars(one) for one in names.values() if inspect.isclass(one))]
    found = [one for holder in holders for one in list(holder.values()) if inspect.isfunction(one)]
    return [
        one
        for one in dict.fromkeys(found)
        if one.__code__.co_filename == str(path) and SERVER in _names(one.__code__)
    ]


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return {*code.co_names}.union(*inner)


Choice = dict[str, Any]
"""Values by the names of parameters and, for what `request.param` is in a fixture, of fixtures."""


def _choices(function: Any, fixtures: Mapping[str, Any], names: Mapping[str, Any]) -> list[Choice]:
    """Return every combination of the values that a function and the fixtures behind it are parametrized with."""
    groups: list[list[Choice]] = [
        [
            dict(zip(listed, [values_of(one)] if len(listed) == 1 else values_of(one), strict=False))
            for one in values
        ]
        for listed, values in getattr(function, "parameters", [])
    ]
    for name in _asked(function, fixtures, set()):
        fixture = function if name == function.__name__ else fixtures[name]
        values = [*getattr(fixture, "fixture", [None]), *_indirect(name, names)]
        groups.append([{f"request of {name}": values_of(one)} for one in values])
    return [
        {name: one for part in parts for name, one in part.items()} for parts in itertools.product(*groups)
    ]


def _asked(function: Any, fixtures: Mapping[str, Any], seen: set[str]) -> set[str]:
    """The names of a function and of all fixtures that it asks for, at any depth."""
    if function.__name__ not in seen:
        seen.add(function.__name__)
        for name in inspect.signature(function).parameters:
            if name in fixtures:
                _asked(fixtures[name], fixtures, seen)
    return seen


def _indirect(fixture: str, names: Mapping[str, Any]) -> list[Any]:
    """The values that a module's tests give to a fixture."""
    groups = [
        group for one in names.values() for group in getattr(one, "indirect", ()) if inspect.isroutine(one)
    ]
    return [value for listed, values in groups if listed == [fixture] for value in values]


class _Config(Anything):
    def getoption(self, *_: Any) -> None:
        """Return what an option is that nobody gave."""


class _Request:
    """Pytest's `request`; it has a parameter where its fixture was given one."""

    config = _Config()

    def __init__(self, param: Any) -> None:
        if param is not None:
            self.param = param


def _call(function: Any, choice: Choice, fixtures: Mapping[str, Any], depth: int = 0) -> Any:
    """Call a function with fixtures for the arguments that are not given. Return what it returns or first yields."""
    arguments: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        if one.name == "request":
            arguments[one.name] = _Request(choice.get(f"request of {function.__name__}"))
        elif one.name in choice:
            arguments[one.name] = choice[one.name]
        elif one.name in fixtures and depth < 5 and fixtures[one.name] is not function:
            arguments[one.name] = _call(fixtures[one.name], choice, fixtures, depth + 1)
        elif one.default is inspect.Parameter.empty and one.kind in (
            one.POSITIONAL_OR_KEYWORD,
            one.KEYWORD_ONLY,
        ):
            arguments[one.name] = Anything()
    result = function(**arguments)
    if inspect.iscoroutine(result):
        try:
            result.send(None)
        except StopIteration as stop:
            return stop.value
        finally:
            result.close()
        return Anything()
    if inspect.isasyncgen(result):
        return _call(lambda: anext(result), {}, {}, depth)
    return next(result) if inspect.isgenerator(result) else result


def _bounded(function: Callable[[], Any]) -> None:
    """Call a function, which a signal ends when it takes long."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"had not come to a server after {CALL_SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(CALL_SECONDS)
    try:
        function()
    finally:
        signal.alarm(0)


def record(root: Path) -> dict[str, Any]:
    """Return the servers that tests below a folder start, and the files that start one which is not among them."""
    tests = Tests(root)
    found: list[dict[str, Any]] = []
    unread = []
    for path in sorted(root.rglob("*.py")):
        if f"{SERVER}(" not in path.read_text() or path == root / "utils.py":
            continue
        name = str(path.relative_to(root))
        before = len(found)
        for one in tests.launches(path):
            flags = [str(flag) for flag in one.flags]
            environment = {str(key): str(value) for key, value in one.environment.items()}
            launch = {"file": name, "model": str(one.model), "flags": flags, "environment": environment}
            if UNKNOWN not in " ".join([str(one.model), *flags]) and launch not in found:
                found.append(launch)
        if len(found) == before:
            unread.append(name)
    return {"launches": found, "unread": unread}


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    threading.excepthook = lambda _: None
    Path(sys.argv[2]).write_text(json.dumps(record(Path(sys.argv[1]).resolve()), indent=1))
