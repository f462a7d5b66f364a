"""Tensors of weight files, memory-mapped."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pageant.models.errors import CheckpointError
from pageant.models.gguf.folder import SUFFIX
from pageant.models.gguf.mapping import map_tensor
from pageant.models.tensor_files import TensorInfo

__all__ = ["MappedFiles"]


class MappedFiles:
    """Weight files. Those of safetensors are mapped from their first tensor on, until the context ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._opened: dict[Path, Any] = {}

    def __enter__(self) -> MappedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.clear()
        self._stack.close()

    def read(self, info: TensorInfo) -> Tensor:
        """Return a tensor [*info.shape] of its saved dtype, a view of the file's mapping. Raises CheckpointError.

        Blocks of GGUF files are uint8 (see `gguf.mapping`).
        """
        if info.file.suffix == SUFFIX:
            return map_tensor(info)
        try:
            if info.file not in self._opened:
                self._opened[info.file] = self._stack.enter_context(safe_open(info.file, framework="pt"))
            tensor: Tensor = self._opened[info.file].get_tensor(info.stack or info.name)
        except SafetensorError as error:
            raise CheckpointError(
                info.file, str(error), "a safetensors file", "Download it again."
            ) from error
        return tensor if info.stack is None else tensor[info.number]
