"""Safetensors headers: what a file holds, known without reading a weight.

A file is eight bytes of header length (little endian), that many bytes of JSON, then the tensors; the
header gives each one's dtype, shape and byte range. So a file that was cut short shows in its size.
https://huggingface.co/docs/safetensors (format)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pageant.models.errors import CheckpointError

__all__ = ["TensorInfo", "read_header"]

_HEADER_BYTES_MAX = 100_000_000  # the format's own limit
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of an element, of the types that are read here
_REMEDY = "Download the file again."


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: its dtype by the format's name ("BF16", "F32", ...), and its shape."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a file by name, in the order in which they lie in it.

    Raises CheckpointError when the file cannot be read, is no safetensors file, or is not whole.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if size >= 8 and length <= _HEADER_BYTES_MAX else b""
    except OSError as error:
        raise CheckpointError(path, f"not readable ({error})", "a safetensors file", _REMEDY) from error
    if size < 8 + length:
        raise _truncated(path, size, 8 + length)
    tensors = _parse(path, header)
    end = 8 + length + max((stop for _, stop in tensors.values()), default=0)
    if size < end:
        raise _truncated(path, size, end)
    return {name: info for name, (info, _) in sorted(tensors.items(), key=lambda item: item[1][1])}


def _parse(path: Path, header: bytes) -> dict[str, tuple[TensorInfo, int]]:
    """Return each tensor, and where its bytes end after the header."""
    try:
        entries: dict[str, Any] = json.loads(header)
        entries.pop("__metadata__", None)
        return {name: _parse_entry(path, name, entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        found = f"no header of a safetensors file ({error!r})"
        raise CheckpointError(path, found, "a safetensors file", _REMEDY) from error


def _parse_entry(path: Path, name: str, entry: dict[str, Any]) -> tuple[TensorInfo, int]:
    start, stop = entry["data_offsets"]
    info = TensorInfo(path, name, str(entry["dtype"]), tuple(entry["shape"]), stop - start)
    size = _SIZES.get(info.dtype)
    if start < 0 or (size is not None and prod(info.shape) * size != info.num_bytes):
        raise ValueError(f"{name} is {info.dtype} of shape {list(info.shape)} in bytes {start} to {stop}")
    return info, stop


def _truncated(path: Path, size: int, expected: int) -> CheckpointError:
    return CheckpointError(path, f"{size} bytes (truncated)", f"{expected} bytes by its header", _REMEDY)
