"""Messages, and arrays in them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pageant.protocol.arrays import Int32Vector, array_fields, arrays_of, bools, freeze, int32, int64
from pageant.protocol.message import Message, kind_of
from pageant.protocol.serving import Submit


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    ids: Int32Vector


class Outer(Message, frozen=True, kw_only=True):
    name: str = ""
    one: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_row: dict[int, Inner] = msgspec.field(default_factory=dict)
    own: Int32Vector | None = None


def test_two_message_types_cannot_share_a_name():
    with pytest.raises(TypeError, match="two message types are called Submit"):
        type("Submit", (Message,), {"__module__": "elsewhere"}, frozen=True, kw_only=True)
    assert kind_of("Submit") is Submit
    assert kind_of("NoSuchThing") is None


def test_arrays_are_found_wherever_they_are():
    message = Outer(
        one=Inner(ids=int32([1])),
        many=(Inner(ids=int32([2])), Inner(ids=int32([3]))),
        by_row={7: Inner(ids=int32([4]))},
        own=int32([5]),
    )
    assert array_fields(Outer) == ("one", "many", "by_row", "own")
    assert [array.tolist() for array in arrays_of(message)] == [[1], [2], [3], [4], [5]]
    freeze(message)
    assert not any(array.flags.writeable for array in arrays_of(message))


def test_freezing_reaches_the_array_that_a_reshaped_one_looks_at():
    base = np.arange(4, dtype=np.int32)
    freeze(Outer(own=base.reshape(-1)))
    assert not base.flags.writeable


def test_a_view_of_a_buffer_that_can_still_be_written_is_refused():
    buffer = np.zeros(100, dtype=np.int32)
    with pytest.raises(AssertionError, match="send a copy"):
        freeze(Outer(own=buffer[:10]))


def test_array_kinds_ask_for_dtype_and_rank():
    assert isinstance(int32([1]), Int32Vector)
    assert not isinstance(int64([1]), Int32Vector)
    assert not isinstance(int32([1]).reshape(1, 1), Int32Vector)
    assert bools([1, 0]).dtype == np.bool_


def test_messages_cannot_be_changed():
    with pytest.raises(AttributeError):
        Outer().name = "x"
