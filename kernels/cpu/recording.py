"""Recording of kernel calls and their replay without Python: the CPU's counterpart of a CUDA graph.

A decode step of one sequence is some nine calls a layer. Each costs the interpreter several microseconds in
which the machine's threads have nothing to do. A recording is bound to shapes and addresses, as a graph is.
Operations of torch between them are made again as well, and call back into Python (see `recorded_torch`).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pageant.kernels.cpu.arena import Arena
from pageant.kernels.cpu.library import Functions, Library
from pageant.kernels.cpu.recorded_torch import TorchCalls, in_place, into

if TYPE_CHECKING:
    from ctypes import _NamedFuncPointer as Function

__all__ = ["Calls", "NotRecordable", "RecordedLibrary", "Recorder", "note_call", "noting", "playback"]

_WORDS_MAX, _REALS_MAX = 24, 2  # as in replay.cpp
_WORD_MASK = 2**64 - 1
_CALL = np.dtype(
    [
        ("function", np.uint64),
        ("words", np.int64),
        ("reals", np.int64),
        ("word", np.uint64, _WORDS_MAX),
        ("real", np.float64, _REALS_MAX),
        ("reads", np.int64, 3),
    ]
)
_EMPTY = (torch.ops.aten.new_empty.default, torch.ops.aten.empty.memory_format)
_FROM_HOST = frozenset({torch.ops.aten.lift_fresh.default})  # of numbers that are other ones in another step

Calls = list[tuple["Function | TorchCalls", tuple[Any, ...]]]
"""What is recorded, in order: functions of the library with their arguments, and operations of torch."""


class _Noted(threading.local):
    calls: Calls | None = None
    """Calls of the recording that this thread makes."""


_noted = _Noted()


@contextlib.contextmanager
def noting(calls: Calls) -> Iterator[None]:
    """Let `note_call` add to `calls`, on this thread."""
    _noted.calls = calls
    try:
        yield
    finally:
        _noted.calls = None


def note_call(function: Function, arguments: tuple[Any, ...]) -> None:
    """Add a call of the library to the recording that this thread makes, if it makes one.

    For functions that are called with another library than `RecordedLibrary`.
    """
    if _noted.calls is not None:
        _noted.calls.append((function, arguments))


class NotRecordable(RuntimeError):
    """A recorded function computes something outside of the library."""


class RecordedLibrary:
    """A library whose calls are made and recorded."""

    def __init__(self, library: Library) -> None:
        self.calls: Calls = []
        self.f32, self.bf16, self.f16 = (
            RecordedFunctions(functions, self.calls) for functions in (library.f32, library.bf16, library.f16)
        )
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _recorded_call(getattr(self._library, name), self.calls)


class RecordedFunctions:
    """The functions for one type of numbers, whose calls are made and recorded."""

    def __init__(self, functions: Functions, calls: Calls) -> None:
        self._functions = functions
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _recorded_call(getattr(self._functions, name), self._calls)


def _recorded_call(function: Function, calls: Calls) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        calls.append((function, arguments))
        function(*arguments)

    return call


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets torch take memory from the arena and make views while it is active, and records what it computes.

    Refuses operations that cannot be made again.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from loading its compiler at the first operation, which takes 1.3 s and 90 MB: nothing
        here is compiled.
        """
        return False

    def __init__(self, arena: Arena, calls: Calls, stop: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena
        self._calls = calls
        self._stop = stop

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle an operation on tensors."""
        kwargs = kwargs or {}
        if func in _EMPTY:
            tensor = args[0] if isinstance(args[0], Tensor) else None
            dtype = kwargs.get("dtype") or (tensor.dtype if tensor is not None else torch.get_default_dtype())
            return self._arena.empty(args[0] if tensor is None else args[1], dtype)
        if in_place(func):
            self._torch_calls().add(func, args, kwargs)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        made = result if isinstance(result, (list, tuple)) else (result,)
        if func not in _FROM_HOST and not func._schema.is_mutable and _are_views(made, args):
            return result
        write = into(func)
        if write is None:
            raise NotRecordable(f"{func} cannot be recorded")
        kept = tuple(self._kept(one) for one in made)
        self._torch_calls().add(write, (*kept, *args), kwargs)
        return kept[0] if isinstance(result, Tensor) else kept

    def _kept(self, result: Tensor) -> Tensor:
        """Return what torch has computed in the arena's memory."""
        kept = self._arena.empty(result.shape, result.dtype)
        if not result.is_contiguous():
            if torch.empty_like(result).stride() != result.stride():  # they are kept where numbers lie close
                raise NotRecordable("a result of torch lies apart in memory")
            kept = kept.as_strided(result.shape, result.stride())
        return kept.copy_(result)

    def _torch_calls(self) -> TorchCalls:
        """Return what the next operation of torch is recorded in, behind all that is recorded."""
        last = self._calls[-1][0] if self._calls else None
        if isinstance(last, TorchCalls):
            return last
        made = TorchCalls(self._stop)
        self._calls.append((made, ()))
        return made


def _are_views(made: Sequence[Any], args: tuple[Any, ...]) -> bool:
    """Tell whether all that an operation made is tensors in the memory of its arguments."""
    memory = {_memory(one) for one in args if isinstance(one, Tensor)}
    return all(isinstance(one, Tensor) and _memory(one) in memory for one in made)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def playback(library: Library, calls: Calls) -> Callable[[], None]:
    """Return a function that makes the calls again. It raises what an operation of torch raises."""
    table = np.zeros(len(calls), _CALL)
    for row, (function, arguments) in zip(table, calls, strict=True):
        words, reals = [], []
        for value, kind in zip(arguments, function.argtypes, strict=True):
            if kind is ctypes.c_double:
                reals.append(value)
            else:
                words.append(int(value or 0) & _WORD_MASK)
        row["function"] = _address(function)
        row["words"], row["reals"] = len(words), len(reals)
        row["word"][: len(words)] = words
        row["real"][: len(reals)] = reals

    replay, address = library.replay, table.ctypes.data
    of_torch = tuple(function for function, _ in calls if isinstance(function, TorchCalls))

    def play() -> None:
        replay(address, len(table))
        for one in of_torch:
            one.check()

    return play


def _address(function: Function | TorchCalls) -> int:
    if isinstance(function, TorchCalls):
        return function.address
    return ctypes.cast(function, ctypes.c_void_p).value or 0
