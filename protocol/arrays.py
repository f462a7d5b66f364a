"""Array fields of messages: declared with dtype and rank, and read-only for their receivers.

A field annotated `Int32Vector` holds a numpy array of that dtype and rank and nothing else. Large arrays
travel in a frame of their own, so that they cross without a copy; small ones travel within the body (see
`codec`). Within a process the receiver gets the very array. Both are safe because `freeze` makes arrays
read-only when they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt


class ArrayKind(type):
    """The type of an array field. `isinstance(x, kind)` checks the declared dtype and rank."""

    dtype: np.dtype[Any]
    """The element type, little-endian."""
    wire: str
    """The name of the dtype in a message."""
    rank: int
    """The number of dimensions."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, np.ndarray) and value.dtype == cls.dtype and value.ndim == cls.rank


# Fills the entries of an array of token ids that have no token.
NO_TOKEN = -1

# Dtypes that may travel, with their names in messages.
DTYPES: dict[np.dtype[Any], str] = {}


def _kind(name: str, dtype: str, rank: int) -> ArrayKind:
    little = np.dtype(dtype).newbyteorder("<")  # on the wire, whatever the host
    DTYPES[little] = dtype
    return ArrayKind(name, (), {"dtype": little, "wire": dtype, "rank": rank})


if TYPE_CHECKING:
    BoolVector = npt.NDArray[np.bool_]
    UInt8Vector = npt.NDArray[np.uint8]
    Int32Vector = npt.NDArray[np.int32]
    Int64Vector = npt.NDArray[np.int64]
    Float32Vector = npt.NDArray[np.float32]
    Int32Matrix = npt.NDArray[np.int32]
    Float32Matrix = npt.NDArray[np.float32]
else:
    BoolVector = _kind("BoolVector", "?", 1)
    UInt8Vector = _kind("UInt8Vector", "u1", 1)
    Int32Vector = _kind("Int32Vector", "i4", 1)
    Int64Vector = _kind("Int64Vector", "i8", 1)
    Float32Vector = _kind("Float32Vector", "f4", 1)
    Int32Matrix = _kind("Int32Matrix", "i4", 2)
    Float32Matrix = _kind("Float32Matrix", "f4", 2)


# What has no elements cannot be changed, so that all messages share one. Python has one empty tuple.
_NOTHING: tuple[()] = ()
_NO_INT32, _NO_INT64 = np.zeros(0, np.int32), np.zeros(0, np.int64)


def int32(values: Any = _NOTHING) -> npt.NDArray[np.int32]:
    """Return an int32 vector [len(values)] of `values`: a fresh one, unless it is empty."""
    if values is _NOTHING:
        return _NO_INT32
    return np.array(values, dtype=np.int32).reshape(-1)


def int64(values: Any = _NOTHING) -> npt.NDArray[np.int64]:
    """Return an int64 vector [len(values)] of `values`: a fresh one, unless it is empty."""
    if values is _NOTHING:
        return _NO_INT64
    return np.array(values, dtype=np.int64).reshape(-1)


def bools(values: Any = ()) -> npt.NDArray[np.bool_]:
    """Return a fresh bool vector [len(values)] of `values`."""
    return np.array(values, dtype=np.bool_).reshape(-1)


Visit = Callable[[Any], None]


def _holds_arrays(annotation: Any) -> bool:
    if isinstance(annotation, ArrayKind):
        return True
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return bool(array_fields(annotation))
    return any(_holds_arrays(argument) for argument in get_args(annotation))


_fields_by_type: dict[type, tuple[str, ...]] = {}


def array_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields of a message type that hold arrays, directly or within nested Structs."""
    fields = _fields_by_type.get(kind)
    if fields is None:
        _fields_by_type[kind] = ()  # a type that contains itself adds nothing of its own
        hints = get_type_hints(kind)
        fields = tuple(name for name in kind.__struct_fields__ if _holds_arrays(hints[name]))
        _fields_by_type[kind] = fields
    return fields


def arrays_of(value: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield every array within a message, in field order, whatever its shape and dtype: [...]."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in array_fields(type(value)):
            yield from arrays_of(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from arrays_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays_of(item)


def freeze(message: msgspec.Struct) -> None:
    """Make every array of a message read-only, in place. Free for a type that holds none.

    A view keeps its base alive, and the base may be written through. A sender that fills a buffer again must
    therefore send a copy. An assertion catches the plain case of a writeable base array.
    """
    for name in array_fields(type(message)):
        value = getattr(message, name)
        for array in (value,) if isinstance(value, np.ndarray) else arrays_of(value):
            if array.flags.writeable:
                _freeze_array(array, message)


def _freeze_array(array: npt.NDArray[Any], message: msgspec.Struct) -> None:
    base = array.base
    if isinstance(base, np.ndarray):
        assert not base.flags.writeable or base.size == array.size, (
            f"{type(message).__name__} holds a view of a buffer that can still be written: send a copy"
        )
        base.flags.writeable = False
    array.flags.writeable = False
