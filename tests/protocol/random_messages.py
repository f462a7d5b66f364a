"""Random messages of every kind, by the types of their fields, and a codec to send them through."""

from __future__ import annotations

import enum
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from hypothesis import strategies as st

from pageant.protocol.arrays import ArrayKind, Float32Matrix, Int32Vector
from pageant.protocol.codec import Codec
from pageant.protocol.errors import ProtocolError
from pageant.protocol.message import Message
from pageant.protocol.pooling import TASKS, PoolingParams
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.schema import protocol_kinds
from pageant.protocol.structured_outputs import StructuredOutputsParams

KINDS = [kind for kind in protocol_kinds() if kind.__name__ != "Request"]
CODEC = Codec()
STRUCTURED = st.one_of(
    st.builds(StructuredOutputsParams, json=st.text(min_size=1), disable_any_whitespace=st.booleans()),
    st.builds(
        StructuredOutputsParams, choice=st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple)
    ),
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(-1, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(tuple),
    seed=st.none() | st.integers(0, 2**63 - 1),
    max_tokens=st.none() | st.integers(10, 2**31 - 1),
    min_tokens=st.integers(0, 10),
    stop=st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    structured_outputs=st.none() | STRUCTURED,
)
POOLING = st.builds(
    PoolingParams,
    task=st.sampled_from([None, *TASKS]),
    dimensions=st.none() | st.integers(1, 65536),
    normalize=st.none() | st.booleans(),
    truncate_prompt_tokens=st.none() | st.just(-1) | st.integers(1, 2**31 - 1),
    truncation_side=st.sampled_from([None, "left", "right"]),
    second_segment=st.none() | st.integers(0, 2**31 - 1),
    reads_all=st.booleans(),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=12),
    bytes: st.binary(max_size=12),
    type(None): st.none(),
    SamplingParams: PARAMS,
    PoolingParams: POOLING,
    StructuredOutputsParams: STRUCTURED,
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    if isinstance(annotation, ArrayKind):
        return arrays(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is tuple:
        assert arguments[1] is ...
        is_struct = isinstance(arguments[0], type) and issubclass(arguments[0], msgspec.Struct)
        return st.lists(values(arguments[0]), max_size=1 if is_struct else 3).map(tuple)
    if issubclass(annotation, enum.Enum):
        return st.sampled_from(list(annotation))
    assert issubclass(annotation, msgspec.Struct), annotation
    return instances(annotation)


def arrays(kind: ArrayKind) -> st.SearchStrategy[Any]:
    """Return a strategy for small arrays of a kind."""
    shapes = st.tuples(*[st.integers(0, 5)] * kind.rank)
    return st.builds(
        lambda shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(kind.dtype),
        shapes,
        st.integers(0, 99),
    )


def instances(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for instances whose fields hold anything that their types allow."""
    hints = get_type_hints(cls)
    return st.builds(cls, **{name: values(hints[name]) for name in cls.__struct_fields__})


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are equal in types, dtypes and content."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(
            same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__
        )
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return type(a) is type(b) and a == b


def frames_of(message: Message) -> tuple[bytes, list[bytes]]:
    """Return the encoded body of a message, and its array frames."""
    body, outgoing = CODEC.encode(message)
    return body, [array.tobytes() for array in outgoing]


def decode_or_refuse(kind: str, body: bytes, array_frames: list[bytes]) -> Message | None:
    """Decode: return a message of that kind, or None for a ProtocolError. Anything else fails the test."""
    try:
        message = CODEC.decode(kind, body, array_frames)
    except ProtocolError as error:
        assert str(error)
        return None
    assert type(message).__name__ == kind
    return message


def plain(body: bytes) -> dict[str, Any]:
    """Return the fields of an encoded body."""
    decoded = msgspec.msgpack.decode(body)
    assert isinstance(decoded, dict)
    return decoded


class Pair(Message, frozen=True, kw_only=True):
    first: Int32Vector
    second: Int32Vector


class Grid(Message, frozen=True, kw_only=True):
    cells: Float32Matrix
