"""The codec against everything that may come over a wire: valid messages of every kind, and nonsense."""

from __future__ import annotations

import enum
import tracemalloc
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import DTYPES, ArrayKind, Float32Matrix, Int32Vector, arrays_of, freeze, int32
from pageant.protocol.codec import WITHIN_BYTES_MAX, Codec
from pageant.protocol.envelope import FRAMES_MAX
from pageant.protocol.errors import MalformedMessage, ProtocolError, UnknownKind
from pageant.protocol.message import Message
from pageant.protocol.pooling import TASKS, PoolingParams
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.schema import protocol_kinds
from pageant.protocol.stepping import StepResult
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.tokenizing import Tokenize, Tokenized

KINDS = [kind for kind in protocol_kinds() if kind.__name__ != "Request"]
CODEC = Codec()
ALLOCATION_FACTOR = 100  # a Python object per byte of input at most
ALLOCATION_FIXED = 64 * 1024

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
    """Whatever a field of that type may hold."""
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
    shapes = st.tuples(*[st.integers(0, 5)] * kind.rank)
    return st.builds(
        lambda shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(kind.dtype),
        shapes,
        st.integers(0, 99),
    )


def instances(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{name: values(hints[name]) for name in cls.__struct_fields__})


def same(a: Any, b: Any) -> bool:
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
    body, outgoing = CODEC.encode(message)
    return body, [array.tobytes() for array in outgoing]


def decode_or_refuse(kind: str, body: bytes, array_frames: list[bytes]) -> Message | None:
    """The contract: a message of that kind, or a ProtocolError."""
    try:
        message = CODEC.decode(kind, body, array_frames)
    except ProtocolError as error:
        assert str(error)
        return None
    assert type(message).__name__ == kind
    return message


def plain(body: bytes) -> dict[str, Any]:
    decoded = msgspec.msgpack.decode(body)
    assert isinstance(decoded, dict)
    return decoded


class Pair(Message, frozen=True, kw_only=True):
    first: Int32Vector
    second: Int32Vector


class Grid(Message, frozen=True, kw_only=True):
    cells: Float32Matrix


# Valid messages.


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_comes_back_as_it_was_sent(kind):
    @settings(max_examples=12)
    @given(message=instances(kind))
    def round_trip(message):
        body, frames = frames_of(message)
        received = CODEC.decode(kind.__name__, body, frames)
        assert same(message, received)
        for array in arrays_of(received):
            assert not array.flags.writeable
        for array in arrays_of(message):
            assert not array.flags.writeable

    round_trip()


def test_large_arrays_cross_without_a_copy_and_cannot_be_written():
    ids = np.arange(WITHIN_BYTES_MAX // 4 + 1, dtype=np.int32)
    body, outgoing = CODEC.encode(Tokenized(token_ids=ids, text=""))
    assert outgoing[0] is not None and np.shares_memory(outgoing[0], ids)
    frame = bytearray(outgoing[0].tobytes())
    received = CODEC.decode("Tokenized", body, [frame])
    assert isinstance(received, Tokenized)
    assert np.shares_memory(received.token_ids, np.frombuffer(frame, np.int32))
    with pytest.raises(ValueError, match="read-only"):
        received.token_ids[0] = 7
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 7


def test_small_arrays_travel_within_the_body():
    sent = Tokenized(token_ids=np.arange(WITHIN_BYTES_MAX // 4, dtype=np.int32), text="")
    body, outgoing = CODEC.encode(sent)
    assert not outgoing
    received = CODEC.decode("Tokenized", body)
    assert isinstance(received, Tokenized) and same(sent, received)
    assert not received.token_ids.flags.writeable and received.token_ids.flags.aligned


def test_an_unaligned_frame_is_aligned_by_a_copy():
    ids = np.arange(WITHIN_BYTES_MAX, dtype=np.int32)
    body, outgoing = CODEC.encode(Tokenized(token_ids=ids, text=""))
    frame = memoryview(b"x" + outgoing[0].tobytes())[1:]
    received = CODEC.decode("Tokenized", body, [frame])
    assert isinstance(received, Tokenized)
    assert received.token_ids.flags.aligned and np.array_equal(received.token_ids, ids)
    assert not received.token_ids.flags.writeable


def test_arrays_that_are_not_contiguous_are_sent_as_what_they_show():
    every_other = np.arange(10, dtype=np.int32)
    freeze(Pair(first=every_other, second=int32()))
    body, frames = frames_of(Pair(first=every_other[::2], second=int32()))
    received = CODEC.decode("Pair", body, frames)
    assert isinstance(received, Pair)
    assert received.first.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8", "bool"])
def test_an_array_of_another_dtype_is_refused_even_if_its_bytes_would_fit(dtype):
    body, frames = frames_of(Tokenized(token_ids=np.zeros(8, dtype=dtype), text=""))
    with pytest.raises(MalformedMessage, match=r"token_ids|array|frame index"):
        CODEC.decode("Tokenized", body, frames)


@pytest.mark.parametrize("dtype", ["object", "datetime64[s]", ">i4", "complex64", "U3"])
def test_what_cannot_travel_is_refused_where_it_is_sent(dtype):
    with pytest.raises(TypeError, match="cannot travel"):
        CODEC.encode(Tokenized(token_ids=np.zeros(2, dtype=dtype), text=""))


def test_a_message_with_too_many_arrays_is_refused_where_it_is_sent():
    class Many(Message, frozen=True, kw_only=True):
        parts: tuple[Int32Vector, ...]

    large = np.zeros(WITHIN_BYTES_MAX, np.int32)
    with pytest.raises(TypeError, match="more than"):
        CODEC.encode(Many(parts=(large,) * FRAMES_MAX))


# Nonsense.


@settings(max_examples=300)
@given(
    kind=st.sampled_from([kind.__name__ for kind in KINDS]) | st.text(max_size=20),
    body=st.binary(max_size=60),
    frames=st.lists(st.binary(max_size=20), max_size=3),
)
def test_any_bytes_are_a_message_or_a_protocol_error(kind, body, frames):
    decode_or_refuse(kind, body, frames)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_mutations_of_a_valid_message_are_a_message_or_a_protocol_error(kind):
    @settings(max_examples=25)
    @given(message=instances(kind), data=st.data())
    def mutate(message, data):
        body, frames = frames_of(message)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(body)))
            match data.draw(st.sampled_from(["cut", "flip", "insert", "drop"])):
                case "cut":
                    body = body[:at]
                case "flip":
                    body = body[:at] + data.draw(st.binary(min_size=1, max_size=5)) + body[at + 1 :]
                case "insert":
                    body = body[:at] + data.draw(st.binary(max_size=5)) + body[at:]
                case "drop":
                    body = body[:at] + body[at + 1 :]
        decode_or_refuse(kind.__name__, body, frames)

    mutate()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_fields_of_the_wrong_type_are_a_message_or_a_protocol_error(kind):
    @settings(max_examples=15)
    @given(message=instances(kind), data=st.data())
    def mutate(message, data):
        body, frames = frames_of(message)
        fields = plain(body)
        name = data.draw(st.sampled_from(sorted(fields)))
        fields[name] = data.draw(ANYTHING)
        decode_or_refuse(kind.__name__, msgspec.msgpack.encode(fields), frames)

    mutate()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_missing_extra_or_foreign_field_is_refused_by_name(kind):
    @settings(max_examples=2)
    @given(message=instances(kind))
    def refuse(message):
        body, frames = frames_of(message)
        fields = plain(body)
        with pytest.raises(MalformedMessage, match="surplus"):
            CODEC.decode(kind.__name__, msgspec.msgpack.encode({**fields, "surplus": 1}), frames)
        other = "Tokenize" if kind.__name__ != "Tokenize" else "Abort"
        with pytest.raises(MalformedMessage, match=r"tag|type|Invalid"):
            CODEC.decode(kind.__name__, msgspec.msgpack.encode({**fields, "type": other}), frames)
        for field in msgspec.structs.fields(kind):
            if field.required:
                lacking = {key: value for key, value in fields.items() if key != field.name}
                with pytest.raises(MalformedMessage, match=field.name):
                    CODEC.decode(kind.__name__, msgspec.msgpack.encode(lacking), frames)

    refuse()


@settings(max_examples=60)
@given(message=instances(Assigned), data=st.data())
def test_array_frames_that_are_missing_swapped_cut_or_repeated_never_get_through_wrongly(message, data):
    body, frames = frames_of(message)
    changed = list(frames)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        match data.draw(st.sampled_from(["drop", "cut", "repeat", "add", "swap"])):
            case "drop":
                changed = changed[:at] + changed[at + 1 :]
            case "cut" if at < len(changed):
                changed[at] = changed[at][: data.draw(st.integers(0, 8))]
            case "repeat" if at < len(changed):
                changed.insert(at, changed[at])
            case "add":
                changed.insert(at, data.draw(st.binary(max_size=8)))
            case "swap" if at + 1 < len(changed):
                changed[at], changed[at + 1] = changed[at + 1], changed[at]
    received = decode_or_refuse("Assigned", body, changed)
    if [len(frame) for frame in changed] != [len(frame) for frame in frames]:
        assert received is None


def test_an_array_frame_that_is_named_twice_is_refused():
    large = np.zeros(WITHIN_BYTES_MAX, np.int32)
    body, frames = frames_of(Pair(first=large, second=large))
    fields = plain(body)
    fields["second"] = fields["first"]
    with pytest.raises(MalformedMessage, match=r"named twice.*second"):
        CODEC.decode("Pair", msgspec.msgpack.encode(fields), frames)


@pytest.mark.parametrize(
    "descriptor",
    [
        [0, "i4", [-1]],
        [0, "i4", [2**63]],
        [0, "i4", [2**40]],
        [0, "i4", [2**39]],
        [0, "i4", [1, 1]],
        [0, "i4", []],
        [0, "i4", [[2]]],
        [0, "i4", [2.0]],
        [0, "i4", [True]],
        [0, "i4", [None]],
        [0, "i8", [1]],
        [0, "f4", [2]],
        [0, "", [2]],
        [0, [2]],
        [-1, "i4", [2]],
        [1, "i4", [2]],
        [2**63, "i4", [2]],
        [0, "i4", [2], 0],
        [None, "i4", [2]],
        [],
        {},
        None,
        2,
        "i4",
        b"\0" * 8,
        [0, "i4", {"0": 2}],
        [b"\0" * 4, "i4", [2]],
        [b"\0" * 8, "i4", [1]],
        [b"\0" * 8, "i8", [1]],
        [b"", "i4", [2**39]],
        ["\0" * 8, "i4", [2]],
    ],
    ids=repr,
)
def test_no_descriptor_is_trusted(descriptor):
    body = msgspec.msgpack.encode({"type": "Tokenized", "token_ids": descriptor, "text": ""})
    with pytest.raises(MalformedMessage, match="token_ids"):
        CODEC.decode("Tokenized", body, [b"\0" * 8])


@pytest.mark.parametrize("shape", [[0, 2**63], [2**63, 0], [2**39, 2**39], [-1, -8], [0, -1], [1, 2, 4]])
def test_hostile_shapes_of_matrices_are_refused(shape):
    body = msgspec.msgpack.encode({"type": "Grid", "cells": [0, "f4", shape]})
    for frame in (b"", b"\0" * 32):
        with pytest.raises(MalformedMessage, match="cells"):
            CODEC.decode("Grid", body, [frame])


def test_an_empty_matrix_keeps_its_shape():
    body = msgspec.msgpack.encode({"type": "Grid", "cells": [0, "f4", [0, 2**39]]})
    received = CODEC.decode("Grid", body, [b""])
    assert isinstance(received, Grid)
    assert received.cells.shape == (0, 2**39) and received.cells.nbytes == 0


def test_an_unknown_kind_is_refused_without_repeating_all_of_its_name():
    with pytest.raises(UnknownKind) as caught:
        CODEC.decode("X" * 10_000, b"\x80")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
def test_deep_nesting_is_refused(depth):
    for body in (b"\x91" * depth + b"\xc0", b"\x81\xa1a" * depth + b"\xc0"):
        assert decode_or_refuse("Tokenized", body, []) is None
    descriptor = b"\x83\xa4type\xa9Tokenized\xa4text\xa0\xa9token_ids" + b"\x91" * depth + b"\xc0"
    assert decode_or_refuse("Tokenized", descriptor, []) is None


def promises() -> list[bytes]:
    """Length prefixes that promise up to four billion of what does not follow."""
    field = b"\x81\xa8messages"
    column = b"\x81\xa9token_ids"
    found = []
    for marker in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"):
        for count in (2**20, 2**31 - 1, 2**31, 2**32 - 1):
            prefix = marker + count.to_bytes(4, "big") + (b"\x01" if marker == b"\xc9" else b"")
            found += [
                prefix,
                field + prefix,
                column + prefix,
                field + b"\x91" + prefix,
                column + b"\x93" + prefix,
            ]
    return found


def test_nothing_is_allocated_for_what_is_only_promised():
    for kind in ("TokenizeChat", "Tokenized", "Directory"):
        decode_or_refuse(kind, b"\x80", [])  # its decoder is built once, and that counts for nobody's message
        for body in promises():
            peak = allocated(kind, body, [])
            assert peak <= ALLOCATION_FIXED + ALLOCATION_FACTOR * len(body), (kind, body)


@settings(max_examples=100)
@given(
    kind=st.sampled_from(["Assigned", "TokenBatch", "Submit", "Directory", "NodeStatistics"]),
    prefix=st.binary(max_size=30),
    value=ANYTHING,
)
def test_allocation_stays_of_the_order_of_the_input(kind, prefix, value):
    decode_or_refuse(kind, b"\x80", [])
    for body in (prefix + msgspec.msgpack.encode(value), msgspec.msgpack.encode({"type": kind, "x": value})):
        assert allocated(kind, body, [prefix]) <= ALLOCATION_FIXED + ALLOCATION_FACTOR * len(body)


def allocated(kind: str, body: bytes, frames: list[bytes]) -> int:
    tracemalloc.start()
    try:
        decode_or_refuse(kind, body, frames)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_refusal_names_the_place():
    body, frames = frames_of(StepResult(number=1, epoch=1, rows=int32(), token_ids=int32(), seconds=0.5))
    fields = plain(body) | {"seconds": "soon"}
    with pytest.raises(MalformedMessage, match=r"StepResult: Expected `float`, got `str` - at `\$\.seconds`"):
        CODEC.decode("StepResult", msgspec.msgpack.encode(fields), frames)


def test_a_refused_message_leaves_the_codec_as_it_was():
    body, frames = frames_of(Pair(first=int32([1]), second=int32([2])))
    for bad in (body[:-1], body + b"x", b""):
        with pytest.raises(MalformedMessage):
            CODEC.decode("Pair", bad, frames)
    received = CODEC.decode("Pair", body, frames)
    assert isinstance(received, Pair) and received.second.tolist() == [2]
    assert CODEC.encode(Tokenize(text="x"))[1] == []


def test_every_declared_dtype_has_a_name_on_the_wire():
    assert set(DTYPES.values()) == {"?", "u1", "i4", "i8", "f4"}
