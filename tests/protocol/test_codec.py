"""Codec: valid messages of every kind cross it as they were, arrays without a copy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pageant.protocol.arrays import DTYPES, Int32Vector, arrays_of, freeze, int32
from pageant.protocol.codec import WITHIN_BYTES_MAX
from pageant.protocol.envelope import FRAMES_MAX
from pageant.protocol.errors import MalformedMessage
from pageant.protocol.message import Message
from pageant.protocol.tokenizing import Tokenized
from tests.protocol.random_messages import CODEC, KINDS, Pair, frames_of, instances, same


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


def test_every_declared_dtype_has_a_name_on_the_wire():
    assert set(DTYPES.values()) == {"?", "u1", "i4", "i8", "f4"}
