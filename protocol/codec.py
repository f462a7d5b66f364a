"""Conversion of messages to frames and back.

An array of few bytes travels within the body. A frame of its own would cost both ends more time than the copy
does, and most arrays of a step are short or empty.

`decode` either returns a message of the named kind, checked to the last field, or raises a `ProtocolError`.
It never allocates more than the order of the bytes that came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import DTYPES, ArrayKind, array_fields, freeze
from pageant.protocol.compatibility import LeftOut, without_unknown
from pageant.protocol.envelope import FRAMES_MAX
from pageant.protocol.errors import MalformedMessage, UnknownKind
from pageant.protocol.message import Message, kind_of

Frame = bytes | bytearray | memoryview

ARRAY_FRAMES_MAX = FRAMES_MAX - 2
SIZE_MAX = 2**40  # of one dimension
WITHIN_BYTES_MAX = 4096  # of an array that travels within the body


class Codec:
    """Encoders and decoders, built once. Used by one thread at a time."""

    def __init__(self) -> None:
        self._outgoing: list[Any] = []
        self._incoming: Sequence[Frame] = ()
        self._taken: set[int] = set()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_array)
        self._decoders: dict[str, msgspec.msgpack.Decoder[Message]] = {}

    def encode(self, message: Message) -> tuple[bytes, list[Any]]:
        """Return the body frame and the frames of large arrays. Contiguous arrays of any shape [...] and
        dtype are not copied.
        """
        if not array_fields(type(message)):
            return self._encoder.encode(message), []
        arrays: list[Any] = []
        self._outgoing = arrays
        freeze(message)
        return self._encoder.encode(message), arrays

    def decode(self, kind: str, body: Frame, arrays: Sequence[Frame] = ()) -> Message:
        """Return the message of that kind in these frames. Its arrays are read-only views of the frames.

        Raises:
            UnknownKind: no message type has that name.
            MalformedMessage: the frames do not fit the type; the text names the place.
        """
        message = self._decode(kind, body, arrays)
        if len(self._taken) != len(arrays):
            raise MalformedMessage(f"{kind}: {len(arrays)} array frames came, {len(self._taken)} are named")
        return message

    def decode_known(self, kind: str, body: Frame, arrays: Sequence[Frame], left_out: LeftOut) -> Message:
        """Return a message from a node of another version, without the fields that this version does not know.

        Raises:
            UnknownKind: no message type has that name.
            MalformedMessage: the fields that are known do not fit the type.
        """
        cls = kind_of(kind)
        try:
            raw = msgspec.msgpack.decode(body)
            known = without_unknown(cls, raw, left_out) if cls is not None else raw
            body = msgspec.msgpack.encode(known)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError, OverflowError) as error:
            raise MalformedMessage(f"{kind}: {error}") from None
        return self._decode(kind, body, arrays)

    def _decode(self, kind: str, body: Frame, arrays: Sequence[Frame]) -> Message:
        decoder = self._decoders.get(kind) or self._build_decoder(kind)
        self._incoming, self._taken = arrays, set()
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError, OverflowError) as error:
            raise MalformedMessage(f"{kind}: {error}") from None
        finally:
            self._incoming = ()

    def _build_decoder(self, kind: str) -> msgspec.msgpack.Decoder[Message]:
        cls = kind_of(kind)
        if cls is None:
            raise UnknownKind(f"no message is called {kind[:80]!r} here")
        decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(cls, dec_hook=self._decode_array)
        self._decoders[kind] = decoder
        return decoder

    def _encode_array(self, value: Any) -> list[Any]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a {type(value).__name__} cannot travel in a message")
        dtype = DTYPES.get(value.dtype)
        if dtype is None:
            raise TypeError(f"an array of {value.dtype} cannot travel; expected {', '.join(DTYPES.values())}")
        if value.nbytes <= WITHIN_BYTES_MAX:
            return [value.tobytes(), dtype, value.shape]
        if len(self._outgoing) >= ARRAY_FRAMES_MAX:
            raise TypeError(f"a message holds more than {ARRAY_FRAMES_MAX} arrays with frames of their own")
        self._outgoing.append(np.ascontiguousarray(value))
        return [len(self._outgoing) - 1, dtype, value.shape]

    def _decode_array(self, kind: type, descriptor: Any) -> Any:
        if not isinstance(kind, ArrayKind):
            raise NotImplementedError
        place, shape = _checked_descriptor(kind, descriptor)
        data = place if isinstance(place, bytes) else self._frame(place)
        expected = math.prod(shape) * kind.dtype.itemsize
        if len(data) != expected:
            where = "an array" if isinstance(place, bytes) else f"array frame {place}"
            raise ValueError(f"{where} has {len(data)} bytes, its shape {tuple(shape)} needs {expected}")
        if not expected:
            array: npt.NDArray[Any] = np.empty(shape, kind.dtype)
        else:
            array = np.frombuffer(data, kind.dtype)
            if kind.rank != 1:
                array = array.reshape(shape)
            if not array.flags.aligned:  # a small frame, within a buffer of ZeroMQ's
                array = array.copy()
        array.flags.writeable = False
        return array

    def _frame(self, index: int) -> memoryview:
        """Return the bytes of an array frame. Each frame may be named once."""
        if index >= len(self._incoming):
            raise ValueError(f"array frame {index} did not come")
        if index in self._taken:
            raise ValueError(f"array frame {index} is named twice")
        self._taken.add(index)
        return memoryview(self._incoming[index]).cast("B")


def _checked_descriptor(kind: ArrayKind, descriptor: Any) -> tuple[int | bytes, list[int]]:
    """Return the frame index (or the bytes themselves) and the shape. Raise ValueError for a descriptor that
    is malformed.
    """
    if type(descriptor) is list and len(descriptor) == 3:
        place, dtype, shape = descriptor
        if dtype == kind.wire and type(shape) is list and len(shape) == kind.rank:
            is_placed = type(place) is bytes or (type(place) is int and place >= 0)
            if is_placed and all([type(n) is int and 0 <= n < SIZE_MAX for n in shape]):
                return place, shape
    raise ValueError(
        f"expected [frame index or bytes, {kind.wire!r}, shape of rank {kind.rank}] for a {kind.__name__}"
    )
