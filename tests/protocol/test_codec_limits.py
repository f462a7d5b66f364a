"""Codec: shapes, depths and lengths that a sender only promises cost nothing."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.protocol.errors import MalformedMessage
from tests.protocol.random_messages import ANYTHING, CODEC, Grid, decode_or_refuse

ALLOCATION_FACTOR = 100  # a Python object per byte of input at most
ALLOCATION_FIXED = 64 * 1024


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
