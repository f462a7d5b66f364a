"""Codec: any bytes, mutated fields and wrong array frames are a message or a `ProtocolError`."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.protocol.allocation import Assigned
from pageant.protocol.arrays import int32
from pageant.protocol.codec import WITHIN_BYTES_MAX
from pageant.protocol.errors import MalformedMessage, UnknownKind
from pageant.protocol.stepping import StepResult
from pageant.protocol.tokenizing import Tokenize
from tests.protocol.random_messages import (
    ANYTHING,
    CODEC,
    KINDS,
    Pair,
    decode_or_refuse,
    frames_of,
    instances,
    plain,
)


@settings(max_examples=300)
@given(
    kind=st.sampled_from([kind.__name__ for kind in KINDS]) | st.text(max_size=20),
    body=st.binary(max_size=60),
    frames=st.lists(st.binary(max_size=20), max_size=3),
)
def test_any_bytes_are_a_message_or_a_protocol_error(kind, body, frames):
    decode_or_refuse(kind, body, frames)


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


def test_an_unknown_kind_is_refused_without_repeating_all_of_its_name():
    with pytest.raises(UnknownKind) as caught:
        CODEC.decode("X" * 10_000, b"\x80")
    assert len(str(caught.value)) < 200


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
