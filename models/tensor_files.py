"""Headers of weight files: what a file holds, known without reading a weight.

A safetensors file is eight bytes of header length (little endian), that many bytes of JSON, then the tensors; the
header gives each one's dtype, shape and byte range. So a file that was cut short shows in its size. Headers of GGUF
files are read in `gguf`.
https://huggingface.co/docs/safetensors (format)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.models.errors import CheckpointError

__all__ = ["TensorInfo", "element_bytes", "parts_of", "read_header", "read_values"]

_HEADER_BYTES_MAX = 100_000_000  # the format's own limit
_DIMENSIONS_MAX = 16
_NUMPY = {
    **{
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",
        "F8_E4M3": "u1",
        "F8_E5M2": "u1",
        "F8_E8M0": "u1",
    },
    **{
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
    },
    "BOOL": "?",
}
"""Element types by the format's name. Those that numpy lacks are read as unsigned integers of their bits."""
_REMEDY = "Download the file again."


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: its dtype by the format's name ("BF16", "F32", ...; "Q4_K" in GGUF), and its shape."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int = 0
    """The tensor's first byte, counted from the start of the file."""
    stack: str | None = None
    """The tensor in the file, [parts, *shape], of which this is one part; None is the tensor that has the name."""
    number: int = 0
    """Which part of it."""


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element of a dtype, by the format's name."""
    return np.dtype(_NUMPY[dtype]).itemsize


def parts_of(info: TensorInfo) -> list[TensorInfo]:
    """Return the parts of a stack [parts, ...], each with its number behind its name."""
    count = info.shape[0]
    each = info.num_bytes // count
    return [
        TensorInfo(
            *(info.file, f"{info.name}[{number}]", info.dtype, info.shape[1:], each),
            *(info.offset + number * each, info.name, number),
        )
        for number in range(count)
    ]


def read_values(info: TensorInfo) -> npt.NDArray[Any]:
    """Return a tensor's elements, memory-mapped and read-only: [*info.shape], or [1] of a scalar, in its own dtype.

    See `_NUMPY` for types that numpy lacks.

    Raises CheckpointError when the file cannot be read.
    """
    dtype = np.dtype(_NUMPY[info.dtype])
    if info.num_bytes == 0:
        return np.empty(info.shape, dtype)
    try:
        return np.memmap(info.file, dtype, "r", info.offset, info.shape or (1,))
    except (OSError, ValueError) as error:
        raise CheckpointError(info.file, f"not readable ({error})", "a safetensors file", _REMEDY) from error


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors or GGUF file by name, in the order in which they lie in it.

    Raises CheckpointError when the file cannot be read, is of another kind, or is not whole.
    """
    if path.suffix == ".gguf":
        from pageant.models.gguf.tensors import read_tensors  # which needs this module

        return read_tensors(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            # Nothing is allocated by a length that the file does not have.
            header = file.read(length) if 8 + length <= size and length <= _HEADER_BYTES_MAX else b""
    except OSError as error:
        raise CheckpointError(path, f"not readable ({error})", "a safetensors file", _REMEDY) from error
    if size < 8 + length:
        raise _truncated(path, size, 8 + length)
    tensors = _parse(path, header, 8 + length)
    end = 8 + length + max((stop for _, stop in tensors.values()), default=0)
    if size < end:
        raise _truncated(path, size, end)
    in_order = sorted((info for info, _ in tensors.values()), key=lambda info: (info.offset, info.num_bytes))
    _check_contiguous(path, in_order, 8 + length, size)
    return {info.name: info for info in in_order}


def _check_contiguous(path: Path, tensors: list[TensorInfo], start: int, size: int) -> None:
    """Raise CheckpointError unless tensors lie one after another, from the header's end to the file's."""
    for info in tensors:
        if info.offset != start:
            found = f"{info.name} from byte {info.offset} on"
            raise CheckpointError(path, found, f"byte {start}, where the one before it ends", _REMEDY)
        start += info.num_bytes
    if size != start:
        raise CheckpointError(path, f"{size} bytes", f"{start} bytes by its header", _REMEDY)


def _parse(path: Path, header: bytes, data: int) -> dict[str, tuple[TensorInfo, int]]:
    """Return each tensor, and where its bytes end after the header, which is `data` bytes long."""
    try:
        entries: dict[str, Any] = json.loads(header)
        entries.pop("__metadata__", None)
        return {name: _parse_entry(path, name, entry, data) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        found = f"no header of a safetensors file ({error!r:.300})"
        raise CheckpointError(path, found, "a safetensors file", _REMEDY) from error


def _parse_entry(path: Path, name: str, entry: dict[str, Any], data: int) -> tuple[TensorInfo, int]:
    start, stop = entry["data_offsets"]
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    whole = len(shape) <= _DIMENSIONS_MAX and all(type(n) is int and n >= 0 for n in (start, stop, *shape))
    size = np.dtype(_NUMPY[dtype]).itemsize if _NUMPY.get(dtype) else None
    if (
        not whole
        or not isinstance(dtype, str)
        or stop < start
        or (size is not None and prod(shape) * size != stop - start)
    ):
        raise ValueError(f"{name} is {dtype} of shape {list(shape)!r:.100} in bytes {start} to {stop}")
    info = TensorInfo(path, name, dtype, shape, stop - start, data + start)
    return info, stop


def _truncated(path: Path, size: int, expected: int) -> CheckpointError:
    return CheckpointError(path, f"{size} bytes (truncated)", f"{expected} bytes by its header", _REMEDY)
