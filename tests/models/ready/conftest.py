"""Checkpoints that their makers quantised (`recipes` says how), and copies of them to be broken in one place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pageant import kernels
from pageant.models import Checkpoint, CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.native import NativeDecoder

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Made:
    """A checkpoint of a maker, with what its dequantised weights make of some tokens."""

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_text())

    @property
    def expected(self) -> Mapping[str, Any]:
        """`ids`, `logits` in float32, and the maker's dequantised `weight` of one module, by `name`."""
        return np.load(self.path / "expected.npz")

    @property
    def tensors(self) -> dict[str, Tensor]:
        return load_file(self.path / "model.safetensors")

    def load(self, backend: str = "reference", dtype: str = "float32") -> NativeDecoder:
        decoder = load_decoder(Checkpoint(self.path), dtype, kernels=kernels.load(backend))
        assert isinstance(decoder, NativeDecoder)
        return decoder

    def edit(
        self, config: Mapping[str, Any] | None = None, tensors: Mapping[str, Tensor | None] | None = None
    ) -> None:
        """Change keys of quantization_config (... removes one), and tensors (None removes one)."""
        if config is not None:
            whole = self.config
            section = {**whole["quantization_config"], **config}
            whole["quantization_config"] = {key: value for key, value in section.items() if value is not ...}
            (self.path / "config.json").write_text(json.dumps(whole))
        if tensors is not None:
            changed = {
                name: tensor for name, tensor in (self.tensors | tensors).items() if tensor is not None
            }
            save_file(
                {name: tensor.contiguous() for name, tensor in changed.items()},
                self.path / "model.safetensors",
            )

    def complaint(self) -> str:
        """Return the message with which it is refused before anything loads."""
        return _complaint(self.path)


def _complaint(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        Checkpoint(folder).check()
    assert str(folder) in str(error.value)
    return str(error.value)


@pytest.fixture
def refused() -> Callable[[Path], str]:
    """Return the message with which a folder is refused before anything loads."""
    return _complaint


@pytest.fixture
def made() -> Callable[[str], Made]:
    """Return a committed checkpoint by name."""
    return lambda name: Made(FIXTURES / name)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Made]:
    """Return a copy of one, to be broken."""

    def copy(name: str) -> Made:
        folder = tmp_path / name
        shutil.copytree(FIXTURES / name, folder)
        return Made(folder)

    return copy


@pytest.fixture
def logits_of(pages: Any) -> Callable[[NativeDecoder, Any], Tensor]:
    """Compute the logits of some tokens, in two chunks and a decode."""

    def compute(decoder: NativeDecoder, ids: Any) -> Tensor:
        run, prompt = pages(decoder), [int(token) for token in ids]
        chunks = (prompt[:7], prompt[7:-1], prompt[-1:])
        with torch.inference_mode():
            return torch.cat([run.step({"a": chunk})["a"] for chunk in chunks])

    return compute
