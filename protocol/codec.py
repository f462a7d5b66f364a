"""Messages to frames and back.

Whatever the bytes, `decode` either returns a message of the named kind, checked to the last field, or
raises a `ProtocolError`; and it never allocates beyond the order of what it was given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pageant.protocol.arrays import DTYPES, ArrayKind, array_fields, freeze
from pageant.protocol.envelope import FRAMES_MAX
from pageant.protocol.errors import MalformedMessage, UnknownKind
from pageant.protocol.message import Message, kind_of

Frame = bytes | bytearray | memoryview

ARRAY_FRAMES_MAX = FRAMES_MAX - 2
SIZE_MAX = 2**40  # of one dimension


class Codec:
    """Encoders and decoders, built once. Used by one thread at a time."""

    def __init__(self) -> None:
        self._outgoing: list[Any] = []
        self._incoming: Sequence[Frame] = ()
        self._taken: set[int] = set()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_array)
        self._decoders: dict[str, msgspec.msgpack.Decoder[Message]] = {}

    def encode(self, message: Message) -> tuple[bytes, list[Any]]:
        """The body frame and the array frames (contiguous arrays, not copied when they already are)."""
        if not array_fields(type(message)):
            return self._encoder.encode(message), []
        arrays: list[Any] = []
        self._outgoing = arrays
        freeze(message)
        return self._encoder.encode(message), arrays

    def decode(self, kind: str, body: Frame, arrays: Sequence[Frame] = ()) -> Message:
        """The message of that kind in these frames. Its arrays are read-only views of the frames.

        Raises:
            UnknownKind: no message type has that name.
            MalformedMessage: the frames do not fit the type; the text names the place.
        """
        decoder = self._decoders.get(kind) or self._build_decoder(kind)
        self._incoming, self._taken = arrays, set()
        try:
            message = decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError, OverflowError) as error:
            raise MalformedMessage(f"{kind}: {error}") from None
        finally:
            self._incoming = ()
        if len(self._taken) != len(arrays):
            raise MalformedMessage(f"{kind}: {len(arrays)} array frames came, {len(self._taken)} are named")
        return message

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
        if len(self._outgoing) >= ARRAY_FRAMES_MAX:
            raise TypeError(f"a message holds more than {ARRAY_FRAMES_MAX} arrays")
        dtype = DTYPES.get(value.dtype)
        if dtype is None:
            raise TypeError(f"an array of {value.dtype} cannot travel; expected {', '.join(DTYPES.values())}")
        self._outgoing.append(np.ascontiguousarray(value) if value.ndim else value)
        return [len(self._outgoing) - 1, dtype, list(value.shape)]

    def _decode_array(self, kind: type, descriptor: Any) -> Any:
        if not isinstance(kind, ArrayKind):
            raise NotImplementedError
        index, shape = _checked_descriptor(kind, descriptor)
        if index >= len(self._incoming):
            raise ValueError(f"array frame {index} did not come")
        if index in self._taken:
            raise ValueError(f"array frame {index} is named twice")
        frame = memoryview(self._incoming[index])
        expected = math.prod(shape) * kind.dtype.itemsize
        if frame.nbytes != expected:
            raise ValueError(
                f"array frame {index} has {frame.nbytes} bytes, its shape {shape} needs {expected}"
            )
        self._taken.add(index)
        if not expected:
            array = np.empty(shape, dtype=kind.dtype)
        else:
            array = np.frombuffer(frame, dtype=kind.dtype).reshape(shape)
        if not array.flags.aligned:  # a small frame, within a buffer of ZeroMQ's
            array = array.copy()
        array.flags.writeable = False
        return array


def _checked_descriptor(kind: ArrayKind, descriptor: Any) -> tuple[int, tuple[int, ...]]:
    """Frame index and shape, or ValueError: nothing in a descriptor is trusted."""
    match descriptor:
        case [int(index), str(dtype), list(shape)] if index >= 0 and len(shape) == kind.rank:
            if dtype == DTYPES[kind.dtype] and all(type(n) is int and 0 <= n < SIZE_MAX for n in shape):
                return index, tuple(shape)
    raise ValueError(
        f"expected [frame index, {DTYPES[kind.dtype]!r}, shape of rank {kind.rank}] for a {kind.__name__}"
    )
