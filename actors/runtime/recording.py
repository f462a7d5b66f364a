r"""The file format of recordings: the messages that the actors of a topology received.

    PAGEANT RECORDING 1\\n
    [length][crc32][msgpack]*      a `RecordingHeader`, then `Recorded`, in the order in which they came, then a
                                   `RecordingEnd` if nothing cut it off

Length and checksum are 4 bytes each, little-endian. The file is only appended to, and each part is written at
once. If the writing process is killed, all but a piece of the last part can be read. The header has the
fingerprint of the protocol. A recording of another version can be read as far as its messages are the same:
fields are only appended to them, with defaults.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from pageant.actors.runtime.version import VERSION
from pageant.protocol.codec import Codec
from pageant.protocol.errors import MalformedMessage, PageantError, UnknownKind
from pageant.protocol.handshake import fingerprint
from pageant.protocol.message import Message
from pageant.protocol.recording import ActorDescription, Recorded, RecordedMessage

MAGIC = b"PAGEANT RECORDING 1\n"
PIECE_BYTES_MAX = 2**30


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The topology of a recording, what was kept, and the actors at its beginning."""

    version: str
    fingerprint: str
    began: float
    """Seconds since 1970."""
    topology: str
    kinds: tuple[str, ...]
    texts: bool
    actors: dict[str, ActorDescription]
    num_blocks: int | None = None
    """Blocks of KV memory."""
    block_size: int | None = None
    """Tokens in a block."""
    windows: tuple[int | None, ...] = (None,)
    """The attention window of each layer group."""


class RecordingEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a complete recording."""

    ended: float


_Piece = RecordingHeader | Recorded | RecordingEnd


class UnreadableRecording(PageantError):
    """The file is no recording, or holds messages of another version that this one cannot read."""


class RecordingWriter:
    """Appends to a new file. Closed in order, the file is marked as complete.

    Raises:
        OSError: the file exists already, or cannot be written.
    """

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        self._file = path.open("xb", buffering=0)
        self._file.write(MAGIC)
        self._encoder = msgspec.msgpack.Encoder()
        self.messages = self.dropped = 0
        self.bytes = len(MAGIC)
        self._append(header)

    def write(self, piece: Recorded) -> None:
        """Append the next part, of any node."""
        self.messages += len(piece.messages)
        self.dropped += piece.dropped
        self._append(piece)

    def close(self, ended: float | None) -> None:
        """Close the file. `ended` (seconds since 1970) marks it as complete; None does not."""
        if ended is not None:
            self._append(RecordingEnd(ended=ended))
        self._file.close()

    def _append(self, piece: _Piece) -> None:
        body = self._encoder.encode(piece)
        record = b"".join((len(body).to_bytes(4, "little"), zlib.crc32(body).to_bytes(4, "little"), body))
        written = self._file.write(record)
        if written != len(record):
            raise OSError(f"{self._file.name}: only {written} of {len(record)} bytes could be written")
        self.bytes += len(record)


class RecordingReader:
    """Reads a recording from its beginning, with one part in memory at a time.

    Attributes:
        whole: the recording is complete; known once it has been read to its end.
        dropped: messages that its nodes had no room for, so far.

    Raises:
        UnreadableRecording: the file is no recording.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._codec = Codec()
        self._decoder = msgspec.msgpack.Decoder(_Piece)
        self.whole = False
        self.dropped = 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise UnreadableRecording(f"{path}: {error.strerror}") from None
        header = self._next() if self._file.read(len(MAGIC)) == MAGIC else None
        if not isinstance(header, RecordingHeader):
            self._file.close()
            raise UnreadableRecording(f"{path} is no recording; `pageant record` makes them")
        self.header = header

    def __enter__(self) -> RecordingReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def messages(self) -> Iterator[RecordedMessage]:
        """Yield all messages. Those of one node are in order."""
        while (piece := self._next()) is not None:
            if isinstance(piece, RecordingEnd):
                self.whole = True
                return
            if isinstance(piece, Recorded):
                self.dropped += piece.dropped
                yield from piece.messages

    def decode(self, message: RecordedMessage) -> Message:
        """Return a recorded message.

        Raises:
            UnreadableRecording: it does not fit this version's protocol.
        """
        try:
            return self._codec.decode(message.kind, message.body, message.arrays)
        except (MalformedMessage, UnknownKind) as error:
            header = self.header
            raise UnreadableRecording(
                f"{self._path} was made by version {header.version} ({header.fingerprint}); this is {VERSION} "
                f"({fingerprint()}), which cannot read it: {error}"
            ) from None

    def _next(self) -> _Piece | None:
        """Return the next part; None at the end, and where the file was cut off."""
        lead = self._file.read(8)
        size, checksum = int.from_bytes(lead[:4], "little"), int.from_bytes(lead[4:], "little")
        if len(lead) < 8 or size > PIECE_BYTES_MAX:
            return None
        body = self._file.read(size)
        if len(body) < size or zlib.crc32(body) != checksum:
            return None
        try:
            piece: _Piece = self._decoder.decode(body)
            return piece
        except msgspec.DecodeError as error:
            raise UnreadableRecording(f"{self._path}: {error}") from None
