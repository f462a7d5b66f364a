"""Safetensors files written tensor by tensor: sizes are known beforehand, and no file is ever whole in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from pageant.models.tensor_files import TensorInfo, element_bytes

__all__ = ["SHARD_BYTES", "Layout", "ShardWriter"]

SHARD_BYTES = 5_000_000_000
"""A file has so many bytes of tensors at most, unless one module alone has more."""
_COPIED = 16 << 20  # bytes at a time


class Layout(NamedTuple):
    """A tensor to be written: its dtype by the format's name ("BF16", "I32", ...), and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * element_bytes(self.dtype)


class _Space(NamedTuple):
    """The place of a tensor in a file."""

    file: BinaryIO
    offset: int
    layout: Layout


class ShardWriter:
    """Writes the safetensors files of a folder: headers first, then tensors in any order, each once.

    `finish` writes the index, if there are several files. What is left unwritten by then is an error of the caller.
    """

    def __init__(
        self, folder: Path, units: Iterable[Sequence[Layout]], shard_bytes: int = SHARD_BYTES
    ) -> None:
        """Open the files and write their headers. units: tensors that stay in one file, in order."""
        self._folder, self._files = folder, ExitStack()
        self._spaces: dict[str, _Space] = {}
        self._left: set[str] = set()
        self._shard_of: dict[str, str] = {}
        shards = _shards(units, shard_bytes)
        for number, shard in enumerate(shards, start=1):
            name = "model.safetensors"
            if len(shards) > 1:
                name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            self._begin(folder / name, shard)
        self.num_bytes = sum(space.layout.num_bytes for space in self._spaces.values())

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def write(self, name: str, tensor: Tensor) -> None:
        """Write a tensor [*shape], of the shape and dtype that its layout has."""
        space = self._space(name)
        assert tuple(tensor.shape) == space.layout.shape, f"{name} has shape {tuple(tensor.shape)}"
        values = tensor.contiguous().flatten().view(torch.uint8)
        assert len(values) == space.layout.num_bytes, f"{name} has another dtype"
        space.file.seek(space.offset)
        space.file.write(values.numpy().data)

    def copy(self, info: TensorInfo) -> None:
        """Copy the bytes of a tensor that another file has."""
        space = self._space(info.name)
        assert info.num_bytes == space.layout.num_bytes
        space.file.seek(space.offset)
        left = info.num_bytes
        with info.file.open("rb") as source:
            source.seek(info.offset)
            while left:
                part = source.read(min(left, _COPIED))
                if not part:
                    raise OSError(f"{info.file} ends within {info.name}")
                space.file.write(part)
                left -= len(part)

    def finish(self) -> None:
        """Flush all files, and write the index if there are several."""
        assert not self._left, f"never written: {sorted(self._left)[:3]}"
        self._files.close()
        if len({*self._shard_of.values()}) > 1:
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": self._shard_of}
            path = self._folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2) + "\n")

    def _space(self, name: str) -> _Space:
        self._left.remove(name)
        return self._spaces[name]

    def _begin(self, path: Path, shard: Sequence[Layout]) -> None:
        # Larger elements come first, so that every tensor is aligned to its own.
        in_order = sorted(shard, key=lambda layout: -element_bytes(layout.dtype))
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start = 0
        for layout in in_order:
            stop = start + layout.num_bytes
            header[layout.name] = {
                "dtype": layout.dtype,
                "shape": list(layout.shape),
                "data_offsets": [start, stop],
            }
            start = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        file = self._files.enter_context(path.open("wb"))
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + start)
        offset = 8 + len(text)
        for layout in in_order:
            assert layout.name not in self._spaces, f"{layout.name} twice"
            self._spaces[layout.name] = _Space(file, offset, layout)
            self._shard_of[layout.name] = path.name
            self._left.add(layout.name)
            offset += layout.num_bytes


def _shards(units: Iterable[Sequence[Layout]], shard_bytes: int) -> list[list[Layout]]:
    shards: list[list[Layout]] = [[]]
    num_bytes = 0
    for unit in units:
        size = sum(layout.num_bytes for layout in unit)
        if shards[-1] and num_bytes + size > shard_bytes:
            shards.append([])
            num_bytes = 0
        shards[-1].extend(unit)
        num_bytes += size
    return shards
