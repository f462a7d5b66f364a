"""Header frames: whatever the bytes, a header or a MalformedEnvelope."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.protocol.envelope import Header, Mode, decode_header, encode_header
from pageant.protocol.errors import MalformedEnvelope

HEADERS = st.builds(
    Header,
    mode=st.sampled_from(Mode),
    kind=st.text(max_size=20),
    to=st.text(max_size=20),
    sender=st.text(max_size=20),
    correlation=st.integers(0, 2**63),
    to_incarnation=st.integers(0, 2**31),
    from_incarnation=st.integers(0, 2**31),
    timeout=st.none() | st.floats(0, 1e9),
    trace=st.none() | st.text(max_size=55),
    credit=st.integers(0, 2**31),
)


@given(header=HEADERS)
def test_a_header_comes_back_as_it_was_sent(header):
    assert decode_header(encode_header(header)) == header


@settings(max_examples=300)
@given(frame=st.binary(max_size=60))
def test_any_bytes_are_a_header_or_malformed(frame):
    try:
        assert isinstance(decode_header(frame), Header)
    except MalformedEnvelope as error:
        assert str(error).startswith("header: ")


@settings(max_examples=200)
@given(header=HEADERS, at=st.integers(0, 100), patch=st.binary(max_size=5), cut=st.integers(0, 5))
def test_mutated_headers_are_headers_or_malformed(header, at, patch, cut):
    frame = encode_header(header)
    frame = frame[:at] + patch + frame[at + cut :]
    with contextlib.suppress(MalformedEnvelope):
        assert isinstance(decode_header(frame), Header)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [0],
        [99, "k", "t", "s"],
        [-1, "k", "t", "s"],
        ["TELL", "k", "t", "s"],
        [0, 1, "t", "s"],
        [0, "k", None, "s"],
        [0, "k", "t", "s", "one"],
        [0, "k", "t", "s", 1, 0, 0, "soon"],
        [0, "k", "t", "s", 1, 0, 0, None, None, 0, "surplus"],
        {"mode": 0},
        None,
    ],
    ids=repr,
)
def test_a_header_of_another_form_is_malformed(fields):
    with pytest.raises(MalformedEnvelope):
        decode_header(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("marker", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"])
def test_a_header_that_promises_gigabytes_costs_nothing(marker):
    promise = marker + (2**32 - 1).to_bytes(4, "big")
    tracemalloc.start()
    for frame in (promise, b"\x94\x00" + promise, b"\x9a\x00\xa0\xa0\xa0\x00\x00\x00\xc0" + promise):
        with pytest.raises(MalformedEnvelope):
            decode_header(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 1024
