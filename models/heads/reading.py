"""Reads the checkpoint of some heads: a folder with config.json and safetensors, as their authors publish them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config
from pageant.models.errors import CheckpointError

__all__ = ["HeadTensors"]

_REMEDY = "Check that the heads were made for this model."


class HeadTensors:
    """The tensors of a folder, taken one by one; what is left over at the end is not known.

    Raises:
        CheckpointError: a tensor is missing, misshapen or not known, or a file is not whole.
    """

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device) -> None:
        checkpoint = Checkpoint(path)
        self.path = path
        self.config = Config(dict(checkpoint.config), path / "config.json")
        self._dtype, self._device = dtype, device
        self._tensors: dict[str, Tensor] = {}
        for file in checkpoint.weight_files:
            try:
                with safe_open(file, framework="pt") as tensors:
                    names = [name for name, info in checkpoint.saved_tensors.items() if info.file == file]
                    self._tensors |= {name: tensors.get_tensor(name) for name in names}
            except SafetensorError as error:
                raise CheckpointError(file, str(error), "a safetensors file", "Download it again.") from error

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def rename(self, names: dict[str, str]) -> None:
        """Change the beginnings of names, where they are so, to other ones."""
        for old, new in names.items():
            for name in [name for name in self._tensors if name.startswith(old)]:
                self._tensors[new + name.removeprefix(old)] = self._tensors.pop(name)

    def take(self, name: str, *shape: int) -> Tensor:
        """Take a tensor [*shape], in the model's dtype.

        Raises:
            CheckpointError: there is none, or one of another shape.
        """
        tensor = self.take_raw(name, *shape)
        return tensor.to(self._device, self._dtype)

    def take_raw(self, name: str, *shape: int) -> Tensor:
        """Take a tensor [*shape], in the dtype that it has in the file. Raises as `take` does."""
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise CheckpointError(self.path, f"no tensor {name}", f"one of shape {list(shape)}", _REMEDY)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                self.path, f"{name} has shape {list(tensor.shape)}", f"shape {list(shape)}", _REMEDY
            )
        return tensor

    def drop(self, *names: str) -> None:
        """Forget tensors that are not needed here."""
        for name in names:
            self._tensors.pop(name, None)

    def finish(self) -> None:
        """Check that everything has been taken."""
        if self._tensors:
            found = f"unknown tensors: {', '.join(sorted(self._tensors)[:3])}"
            raise CheckpointError(self.path, found, "only those of the heads", _REMEDY)
