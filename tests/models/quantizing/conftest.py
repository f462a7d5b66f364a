"""Small models to quantise, and what a written checkpoint's weights are when they are read back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pageant.models import Checkpoint
from pageant.models.ready.filling import dequantised

SIZES = {
    **{"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2},
}


def _read_back(folder: Path) -> dict[str, Tensor]:
    """Return the quantised weights of a checkpoint by module, float32 [outputs, inputs], as `ready` reads them."""
    ready = Checkpoint(folder).ready
    assert ready is not None
    found = {}
    for weight, module in ready.modules.items():
        files = {info.file for info in module.parts.values()}
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= load_file(file)
        parts = {role: tensors[info.name] for role, info in module.parts.items()}
        found[weight.removesuffix(".weight")] = dequantised(module, parts)
    return found


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint by name."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


@pytest.fixture
def read_back() -> Callable[[Path], dict[str, Tensor]]:
    """See `_read_back`."""
    return _read_back


@pytest.fixture
def tensors() -> Callable[[Path], dict[str, Tensor]]:
    """See `_tensors`."""
    return _tensors


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose rows have 64 and 96 inputs, in bfloat16, with files beside its weights."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(**SIZES)).bfloat16().save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    (folder / ".hidden").write_text("of a tool")
    (folder / "draft").mkdir()
    (folder / "draft" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def edited(llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """Make a copy of the Llama with some keys of its configuration, or some tensors, changed."""

    def edit(config: Mapping[str, Any] | None = None, tensors: Mapping[str, Tensor] | None = None) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(llama, folder)
        values = json.loads((folder / "config.json").read_text()) | dict(config or {})
        (folder / "config.json").write_text(json.dumps(values))
        save_file(_tensors(llama) | dict(tensors or {}), folder / "model.safetensors")
        return folder

    return edit
