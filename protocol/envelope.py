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
    """The purpose of an envelope."""

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
    """Sender, receiver and kind of a message."""

    mode: Mode
    """The purpose of the envelope."""
    kind: str
    """The class name of the message."""
    to: str
    """The address of the receiver."""
    sender: str
    """The address of the sender."""
    correlation: int = 0
    """Names the conversation within the asking node; 0 for a tell."""
    to_incarnation: int = 0
    """The life of the receiver that is meant; 0 is whichever lives."""
    from_incarnation: int = 0
    """The life of the sender."""
    timeout: float | None = None
    """Seconds that remain for the answer; None sets no deadline."""
    trace: str | None = None
    """A W3C `traceparent`, where the request is traced."""
    credit: int = 0
    """How many (more) items of a stream may be sent."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode_header(header: Header) -> bytes:
    """Return the frame of a header."""
    return _encoder.encode(header)


def decode_header(frame: bytes) -> Header:
    """Return the header in a frame.

    Raises:
        MalformedEnvelope: the frame is no header.
    """
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise MalformedEnvelope(f"header: {error}") from None
