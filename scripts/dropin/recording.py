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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = "RemoteOpenAIServer"
HUB = "hub://"
"""What stands before a hub id where a test has the folder of its snapshot."""
UNKNOWN = "<unknown>"
"""A text that only the imports of a test would tell."""
CALL_SECONDS = 5


class Launched(BaseException):
    """Ends a function at the place where it starts a server."""


@dataclass(frozen=True)
class Launch:
    """A server that a test starts: arguments of `RemoteOpenAIServer`."""

    model: Any
    flags: list[Any]
    environment: dict[Any, Any]


_FOUND: list[Launch] = []
"""Of all threads, since tests start servers in threads, too."""


class _Base(dict[str, Any]):
    """A base class for classes whose own are not there."""

    def __init_subclass__(cls, **_: Any) -> None: ...


class Anything:
    """A stand-in for what is imported: has every attribute, and can be called, entered, added and compared."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return _downloaded if name in ("snapshot_download", "download_weights_from_hf") else Anything()

    def __str__(self) -> str:
        return UNKNOWN

    __repr__ = __fspath__ = __str__

    def __int__(self) -> int:
        return 1

    __index__ = __len__ = __int__

    def __radd__(self, other: Any) -> Any:
        """Return what stands before it, of which this would be more."""
        return other

    def _other(self, *_: Any) -> Any:
        return Anything()

    __add__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __or__ = __ror__ = _other

    def _no(self, *_: Any) -> bool:
        return False

    __lt__ = __gt__ = __le__ = __ge__ = _no

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return the function where this decorates one, else another stand-in."""
        decorates = len(arguments) == 1 and not named and inspect.isroutine(arguments[0])
        return arguments[0] if decorates else Anything()

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, key: Any) -> Any:
        return Anything()

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (_Base,)


class _Server(Anything):
    """`RemoteOpenAIServer`."""

    def __call__(self, model: Any, arguments: Any = (), *_: Any, **named: Any) -> Any:
        flags = list(arguments)
        if named.get("seed", 0) is not None:
            flags += ["--seed", str(named.get("seed", 0))]
        if named.get("override_hf_configs") is not None:
            flags += ["--hf-overrides", _dumps(named["override_hf_configs"])]
        _FOUND.append(Launch(model, flags, dict(named.get("env_dict") or {})))
        raise Launched


def _downloaded(repo_id: str, *_: Any, **__: Any) -> str:
    """Return what stands for the folder of a snapshot."""
    return HUB + repo_id


class _Json(Anything):
    """`json`, which writes stand-ins, too."""

    def dumps(self, value: Any, **_: Any) -> str:
        return _dumps(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)


def _dumps(value: Any) -> str:
    return json.dumps(value, default=str)


class _Parameter:
    """`pytest.param`."""

    def __init__(self, *values: Any, **_: Any) -> None:
        self.values = values


def _values(one: Any) -> Any:
    if isinstance(one, _Parameter):
        return one.values[0] if len(one.values) == 1 else one.values
    return one


def _fixture(function: Any = None, params: Any = None, **_: Any) -> Any:
    def mark(found: Any) -> Any:
        found.fixture = list(params) if params is not None else [None]
        return found

    return mark(function) if function is not None else mark


def _parametrize(names: Any, values: Any, indirect: Any = False, **_: Any) -> Callable[[Any], Any]:
    listed = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)

    def mark(function: Any) -> Any:
        if inspect.isroutine(function):
            kind = "indirect" if indirect else "parameters"
            setattr(function, kind, [*getattr(function, kind, []), (listed, list(values))])
        return function

    return mark


class _Marks:
    parametrize = staticmethod(_parametrize)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: (
            arguments[0]
            if len(arguments) == 1 and (inspect.isroutine(arguments[0]) or inspect.isclass(arguments[0]))
            else lambda function: function
        )


class _Pytest(Anything):
    fixture = staticmethod(_fixture)
    param = _Parameter
    mark = _Marks()


_STAND_INS: dict[str, Any] = {
    "pytest": _Pytest(),
    "pytest_asyncio": _Pytest(),
    "json": _Json(),
}


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
            if level == 0 and name in _STAND_INS:
                return _STAND_INS[name]
            if level == 0 and top in sys.stdlib_module_names:
                return builtins.__import__(name, None, None, wanted or (), 0)
            found = self._own(path, name, level)
            return _module(name, found or {}, wanted or ())

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
        _FOUND.clear()
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
        return list(_FOUND)


def _module(name: str, found: Mapping[str, Any], wanted: Sequence[str]) -> Any:
    class Module(Anything):
        def __getattr__(self, attribute: str) -> Any:
            if attribute == SERVER:
                return _Server()
            if attribute in found:
                return found[attribute]
            return super().__getattr__(attribute)

    return Module()


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
            dict(zip(listed, [_values(one)] if len(listed) == 1 else _values(one), strict=False))
            for one in values
        ]
        for listed, values in getattr(function, "parameters", [])
    ]
    for name in _asked(function, fixtures, set()):
        fixture = function if name == function.__name__ else fixtures[name]
        values = [*getattr(fixture, "fixture", [None]), *_indirect(name, names)]
        groups.append([{f"request of {name}": _values(one)} for one in values])
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
