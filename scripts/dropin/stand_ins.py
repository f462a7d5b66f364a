"""Stand-ins for what vLLM's tests import: servers that are noted, not started, and objects that are like anything."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SERVER = "RemoteOpenAIServer"
HUB = "hub://"
"""What stands before a hub id where a test has the folder of its snapshot."""
UNKNOWN = "<unknown>"
"""A text that only the imports of a test would tell."""


class Launched(BaseException):
    """Ends a function at the place where it starts a server."""


@dataclass(frozen=True)
class Launch:
    """A server that a test starts: arguments of `RemoteOpenAIServer`."""

    model: Any
    flags: list[Any]
    environment: dict[Any, Any]


FOUND: list[Launch] = []
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
        FOUND.append(Launch(model, flags, dict(named.get("env_dict") or {})))
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


def values_of(one: Any) -> Any:
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


STAND_INS: dict[str, Any] = {
    "pytest": _Pytest(),
    "pytest_asyncio": _Pytest(),
    "json": _Json(),
}


def module_of(name: str, found: Mapping[str, Any], wanted: Sequence[str]) -> Any:
    class Module(Anything):
        def __getattr__(self, attribute: str) -> Any:
            if attribute == SERVER:
                return _Server()
            if attribute in found:
                return found[attribute]
            return super().__getattr__(attribute)

    return Module()
