"""Operations of torch within a recording, made again by a call from C++ into Python.

What a family scales, adds or chooses between two calls of the library, torch computes. A recording has the address of
a function for each row of such operations, which makes them on the memory that they had: the same operation of torch,
with the same numbers, so the same bits. Views are gone by then, and so is whatever led to the operations.

The alternative, functions of the library for each of them, would be faster still, and other bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

__all__ = ["TorchCalls", "in_place", "into"]

_aten = torch.ops.aten
_INTO: dict[Any, Any] = {
    _aten.add.Tensor: _aten.add.out,
    _aten.add.Scalar: _aten.add.Scalar_out,
    _aten.sub.Tensor: _aten.sub.out,
    _aten.mul.Tensor: _aten.mul.out,
    _aten.mul.Scalar: _aten.mul.Scalar_out,
    _aten.div.Tensor: _aten.div.out,
    _aten.neg.default: _aten.neg.out,
    _aten.exp.default: _aten.exp.out,
    _aten.sigmoid.default: _aten.sigmoid.out,
    _aten.silu.default: _aten.silu.out,
    _aten.softplus.default: _aten.softplus.out,
    _aten.clamp.default: _aten.clamp.out,
    _aten.argsort.stable: _aten.argsort.stable_out,
    _aten.cat.default: _aten.cat.out,
    _aten.stack.default: _aten.stack.out,
    _aten.sum.dim_IntList: _aten.sum.IntList_out,
    _aten.gather.default: _aten.gather.out,
    _aten.scatter.value: _aten.scatter.value_out,
    _aten.masked_fill.Scalar: _aten.masked_fill.Scalar_out,
    _aten._softmax.default: _aten._softmax.out,
    _aten.softmax.int: _aten.softmax.int_out,
}
"""Operations that make a tensor, each with the one that writes it where it is told. Shapes of results follow from those
of arguments alone: so they are as right for other numbers."""
_COPIES = frozenset(
    {
        _aten._to_copy.default,
        _aten.to.dtype,
        _aten.clone.default,
        _aten.contiguous.default,
        _aten.reshape.default,
    }
)
"""Those that make a copy, where they make anything."""
_IN_PLACE = frozenset(
    {
        *(_aten.add_.Tensor, _aten.mul_.Tensor, _aten.div_.Tensor, _aten.div_.Scalar, _aten.copy_.default),
        *(_aten.relu_.default, _aten.square_.default, _aten.tanh_.default, _aten.mul_.Scalar),
        *(_aten.masked_fill_.Scalar, _aten.clamp_.default, _aten.scatter_.value),
    }
)
_FUNCTION = ctypes.CFUNCTYPE(None)


def into(func: Any) -> Callable[..., Any] | None:
    """Return what computes an operation's results into tensors: `call(*results, *arguments, **named)`.

    None is an operation that cannot be made again, or is not known here.
    """
    if func in _COPIES:
        return _copy
    if func in _OTHERS:
        return _OTHERS[func]
    writes = _INTO.get(func)
    return None if writes is None else lambda out, *args, **named: writes(*args, **named, out=out)


def in_place(func: Any) -> bool:
    """Tell whether an operation writes to its first argument, and can be made again."""
    return func in _IN_PLACE


def _copy(out: Tensor, source: Tensor, *how: Any, **named: Any) -> None:
    """Copy a tensor [...] to one of as many numbers and any dtype, which is mutated."""
    out.copy_(source.reshape(out.shape))


def _topk(values: Tensor, indices: Tensor, *args: Any, **named: Any) -> None:
    """Write the largest numbers, [..., k] of the dtype, and their places, int64 [..., k]."""
    _aten.topk.values(*args, **named, values=values, indices=indices)


def _ones(out: Tensor, like: Tensor, **named: Any) -> None:
    """Fill a tensor [...] with ones."""
    out.fill_(1)


_OTHERS: dict[Any, Callable[..., None]] = {_aten.topk.default: _topk, _aten.ones_like.default: _ones}


class TorchCalls:
    """Operations that follow one another in a recording, as a function of no arguments that C++ can call.

    Args:
        stop: ends the replay that is under way. What follows an operation that failed would read what it left there.
    """

    argtypes: tuple[Any, ...] = ()

    def __init__(self, stop: Callable[[], None]) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._error: BaseException | None = None  # of the last time, which C++ could not pass on
        self._stop = stop
        self._function = _FUNCTION(self._make)

    @property
    def address(self) -> int:
        """Return where the function is, good as long as this object."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def add(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Add an operation. It is given the memory of its arguments again, which it does not keep."""
        self._calls.append((func, *tree_map_only(Tensor, _seen, (args, named))))

    def check(self) -> None:
        """Raise what an operation raised since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _make(self) -> None:
        try:
            with torch.inference_mode():
                for func, args, named in self._calls:
                    func(*args, **named)
        except BaseException as error:  # C++ is above, through which nothing can be raised
            self._error = error
            self._stop()


def _seen(tensor: Tensor) -> Tensor:
    """Return a tensor of the same memory that does not hold it, so that an arena may give it to others meanwhile."""
    spread = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_char * ((spread + 1) * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
