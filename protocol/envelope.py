"""The envelope around a message on the wire: one header frame, one body frame, one frame per large array.

    [header]  msgpack array, `Header`
    [body]    msgpack map of the message that `Header.kind` names; arrays are [frame index or bytes, dtype, shape]
    [array]*  raw little-endian bytes, C order, in the order of first mention

Deadlines travel as the seconds that remain, since clocks differ between hosts.
"""

from __future__ import annotations

import enum

import msgspec

from pageant.protocol.errors import MalformedEnvelope

FRAMES_MAX = 4096  # header and body included; bounds what one envelope can make a receiver hold


class Mode(enum.IntEnum):
    """What an envelope is for."""

    TELL = 0  # no answer expected
    ASK = 1  # one answer expected: REPLY or ERROR
    STREAM = 2  # any number of ITEMs, then END or ERROR
    REPLY = 3
    ITEM = 4
    END = 5
    ERROR = 6
    CANCEL = 7  # control lane: the asker no longer wants the answer
    CREDIT = 8  # control lane: the consumer of a stream takes more items
    LINK = 9  # handshake between nodes


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who says what kind of thing to whom.

    `correlation` names the conversation within the asking node; 0 for a tell. An incarnation of 0 means
    "whichever lives". `timeout` is in seconds. `trace` is a W3C `traceparent`. `credit` is how many items
    of a stream may be sent (more).
    """

    mode: Mode
    kind: str
    to: str
    sender: str
    correlation: int = 0
    to_incarnation: int = 0
    from_incarnation: int = 0
    timeout: float | None = None
    trace: str | None = None
    credit: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode_header(header: Header) -> bytes:
    """The header's frame."""
    return _encoder.encode(header)


def decode_header(frame: bytes) -> Header:
    """The header in a frame.

    Raises:
        MalformedEnvelope: the frame is no header.
    """
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise MalformedEnvelope(f"header: {error}") from None
