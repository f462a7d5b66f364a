"""The header of a GGUF file: its metadata, and where its tensors are. Knows no torch.

A file has, one after another and little endian:

- the letters GGUF, a version (2 or 3) uint32, the counts of tensors and of metadata, uint64 each;
- for each piece of metadata a key, a type, and a value; a string is its length uint64 and UTF-8;
- for each tensor a name, the number of its dimensions, the dimensions (the innermost first), a type, an offset;
- the tensors, from the next multiple of `general.alignment` on, to which offsets are relative.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

No number in a header is trusted. Lengths are held against what is left of the file, nothing is allocated by them, and
values of arrays stay in the file until they are asked for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.models.errors import CheckpointError
from pageant.models.gguf.types import TYPES, BlockType

__all__ = ["Array", "GGUFFile", "Tensor", "read_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_DIMENSIONS_MAX = 4
_NAME_BYTES_MAX = 1 << 16
_DEFAULT_ALIGNMENT = 32
_REMEDY = "Download the file again."
_EXPECTED = "a GGUF file"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file."""

    name: str
    kind: BlockType
    shape: tuple[int, ...]
    """Outermost dimension first, as everywhere here."""
    offset: int
    """The first byte, counted from the start of the file."""
    num_bytes: int


class Array:
    """An array in the metadata, read when it is asked for."""

    def __init__(self, file: GGUFFile, key: str, kind: int, count: int, start: int, stop: int) -> None:
        self._file, self._key, self._kind = file, key, kind
        self._count, self._start, self._stop = count, start, stop

    def __len__(self) -> int:
        return self._count

    def texts(self) -> list[str]:
        """Return its strings. Raises CheckpointError where it has something else, or no UTF-8."""
        if self._kind != _STRING:
            raise self._file.wrong(self._key, "an array of numbers", "an array of strings")
        return list(self._file.strings(self._key, self._start, self._count))

    def numbers(self) -> npt.NDArray[Any]:
        """Return its numbers in a copy, [len(self)], of the dtype that they have in the file.

        Raises CheckpointError where it has something else.
        """
        if self._kind not in _SCALARS:
            raise self._file.wrong(self._key, "an array of strings or arrays", "an array of numbers")
        kind = np.dtype("<" + _SCALARS[self._kind])
        return np.frombuffer(self._file.piece(self._start, self._stop), kind).copy()


Value = str | int | float | bool | Array


class GGUFFile:
    """The header of one file. Everything raises CheckpointError naming the file and what is wrong in it."""

    def __init__(self, path: Path) -> None:
        """Read the header. Values of arrays and tensors are left where they are."""
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        except (OSError, ValueError) as error:
            raise CheckpointError(path, f"not readable ({error})", _EXPECTED, _REMEDY) from error
        self._position = 0
        self._check_magic()
        num_tensors, num_values = self._count("tensor count"), self._count("metadata count")
        self.metadata: Mapping[str, Value] = self._read_metadata(num_values)
        self.tensors: Mapping[str, Tensor] = self._read_tensors(num_tensors)

    def wrong(self, key: str, found: str, expected: str, remedy: str = _REMEDY) -> CheckpointError:
        """Return an error that names the file and a key, or a place in the header."""
        return CheckpointError(self.path, f"{key} is {found}", expected, remedy)

    def piece(self, start: int, stop: int) -> bytes:
        """Return some bytes of the file."""
        assert self._bytes is not None, "an empty file has no header"
        return self._bytes[start:stop]

    def strings(self, key: str, start: int, count: int) -> Iterator[str]:
        """Yield so many strings that follow one another; their lengths have been checked before."""
        position, data = start, self._bytes
        assert data is not None, "an empty file has no header"
        for index in range(count):
            (length,) = _LENGTH.unpack_from(data, position)
            position += 8 + length
            text = data[position - length : position]
            try:
                yield text.decode()
            except UnicodeDecodeError:
                yield self._text(f"{key}[{index}]", text)

    def _check_magic(self) -> None:
        if self.size < 8 or self.piece(0, 4) != _MAGIC:
            found = (
                f"{self.size} bytes that begin with {self.piece(0, 4)!r}" if self.size else "an empty file"
            )
            raise CheckpointError(self.path, found, "a GGUF file, which begins with b'GGUF'", _REMEDY)
        self._position = 4
        version = self._number("I", "version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
            found = f"{swapped} in big endian" if swapped in _VERSIONS else str(version)
            raise self.wrong("version", found, f"{' or '.join(map(str, _VERSIONS))} in little endian")

    def _read_metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for index in range(count):
            key = self._string(f"key {index} of {count}", _NAME_BYTES_MAX)
            if key in metadata:
                raise self.wrong(key, "there twice", "each key once")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        kind = self._number("I", f"type of {key}")
        if kind == _STRING:
            return self._string(key, self.size)
        if kind == _ARRAY:
            return self._array(key)
        value: Value = self._scalar(kind, key)
        return value

    def _scalar(self, kind: int, key: str) -> Any:
        if kind not in _SCALARS:
            raise self.wrong(f"type of {key}", str(kind), "a type from 0 to 12")
        if kind == 7:  # any byte may be there, while Python's own reading of one would take it for true
            value = self._number("B", key)
            if value > 1:
                raise self.wrong(key, f"the byte {value}", "a truth value, 0 or 1")
            return bool(value)
        return self._number(_SCALARS[kind], key)

    def _array(self, key: str) -> Array:
        kind, count = self._number("I", f"type of {key}"), self._number("Q", f"length of {key}")
        if kind == _ARRAY:
            raise self.wrong(key, "an array of arrays", "an array of numbers or strings")
        if kind == _STRING:
            self._bound(count, 8, key)
            start = self._position
            self._position = self._end_of_strings(key, count)
            return Array(self, key, kind, count, start, self._position)
        if kind not in _SCALARS:
            raise self.wrong(f"type of {key}", str(kind), "a type from 0 to 12")
        start = self._position
        self._skip(count * struct.calcsize("<" + _SCALARS[kind]), key)
        return Array(self, key, kind, count, start, self._position)

    def _end_of_strings(self, key: str, count: int) -> int:
        """Return the byte after so many strings that begin here. A vocabulary has several 100,000."""
        position, data, length_at = self._position, self._bytes, _LENGTH.unpack_from
        for index in range(count):
            if position + 8 > self.size:
                raise self.wrong(f"{key}[{index}]", "cut off", f"{count} strings in the file (truncated)")
            (length,) = length_at(data, position)  # type: ignore[arg-type]
            position += 8 + length
        if position > self.size:
            raise self.wrong(key, f"{position} bytes long or more", f"strings within {self.size} bytes")
        return position

    def _read_tensors(self, count: int) -> dict[str, Tensor]:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self.wrong("general.alignment", repr(alignment), "a power of two")
        listed = {}
        for index in range(count):
            name = self._string(f"name of tensor {index} of {count}", _NAME_BYTES_MAX)
            if name in listed:
                raise self.wrong(name, "there twice", "each tensor once")
            listed[name] = self._tensor(name)
        data = -(-self._position // alignment) * alignment
        return {name: self._placed(tensor, data, alignment) for name, tensor in listed.items()}

    def _tensor(self, name: str) -> Tensor:
        dimensions = self._number("I", f"number of dimensions of {name}")
        if not 1 <= dimensions <= _DIMENSIONS_MAX:
            raise self.wrong(f"number of dimensions of {name}", str(dimensions), f"1 to {_DIMENSIONS_MAX}")
        shape = tuple(self._number("Q", f"shape of {name}") for _ in range(dimensions))[::-1]
        number, offset = self._number("I", f"type of {name}"), self._number("Q", f"offset of {name}")
        kind = TYPES.get(number)
        if kind is None:
            raise self.wrong(f"type of {name}", str(number), "a type that is known here", "Convert it anew.")
        if 0 in shape or shape[-1] % kind.numbers:
            rows = f"rows of whole blocks of {kind.numbers} ({kind.name})"
            raise self.wrong(f"shape of {name}", str(list(shape)), rows)
        # Python's numbers do not overflow: a product that no file could hold is found by its size.
        num_bytes = prod(shape) // kind.numbers * kind.num_bytes
        return Tensor(name, kind, shape, offset, num_bytes)

    def _placed(self, tensor: Tensor, data: int, alignment: int) -> Tensor:
        """Return a tensor with its offset from the start of the file, if it is all there."""
        start = data + tensor.offset
        if tensor.offset % alignment:
            raise self.wrong(f"offset of {tensor.name}", str(tensor.offset), f"a multiple of {alignment}")
        if start + tensor.num_bytes > self.size:
            found = f"bytes {start} to {start + tensor.num_bytes} of a file of {self.size} (truncated)"
            raise self.wrong(tensor.name, found, "bytes of the file")
        return Tensor(tensor.name, tensor.kind, tensor.shape, start, tensor.num_bytes)

    def _count(self, what: str) -> int:
        """Read how many entries follow, each of which takes 12 bytes at least."""
        count: int = self._number("Q", what)
        self._bound(count, 12, what)
        return count

    def _bound(self, count: int, each: int, what: str) -> None:
        left = self.size - self._position
        if count * each > left:
            raise self.wrong(what, str(count), f"no more than the {left} bytes hold that follow")

    def _string(self, what: str, most: int) -> str:
        length = self._number("Q", f"length of {what}")
        if length > most:
            raise self.wrong(f"length of {what}", str(length), f"{most} bytes at most")
        start = self._position
        self._skip(length, what)
        return self._text(what, self.piece(start, self._position))

    def _text(self, what: str, content: bytes) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong(what, f"{content[:80]!r}", f"UTF-8 ({error})") from None

    def _number(self, kind: str, what: str) -> Any:
        size = struct.calcsize("<" + kind)
        start = self._position
        self._skip(size, what)
        (value,) = struct.unpack("<" + kind, self.piece(start, start + size))
        return value

    def _skip(self, num_bytes: int, what: str) -> None:
        left = self.size - self._position
        if num_bytes > left:
            raise self.wrong(what, f"{num_bytes} bytes", f"no more than the {left} that are left (truncated)")
        self._position += num_bytes


def read_gguf(path: Path) -> GGUFFile:
    """Return the header of a file. Raises CheckpointError."""
    return GGUFFile(path)
