"""A small checkpoint in the older style, to be broken in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageant.models import Checkpoint, CheckpointError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 10,
}
SHAPES = {
    "model.embed_tokens.weight": (10, 8),
    "model.norm.weight": (8,),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
}


def save_small_checkpoint(folder: Path) -> None:
    """Write config.json, and zeros for weights, float32 of `SHAPES`."""
    write_config(folder)
    save_file({name: torch.zeros(shape) for name, shape in SHAPES.items()}, folder / "model.safetensors")


def write_config(folder: Path, **changes: Any) -> None:
    """Write config.json with some keys changed; those changed to ... are left out."""
    config = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Add or replace tensors, of any shape and dtype. Those changed to None are left out."""
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def complaint(folder: Path) -> str:
    """Return the error of a broken checkpoint, which names the folder and a remedy."""
    with pytest.raises(CheckpointError) as error:
        Checkpoint(folder).check()
    assert str(folder) in str(error.value) and error.value.remedy
    return str(error.value)
