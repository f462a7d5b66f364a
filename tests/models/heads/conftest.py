"""A small target, and heads with random weights in the formats of their authors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from pageant import kernels
from pageant.models.checkpoint import Checkpoint
from pageant.models.loading import load_decoder

WIDTH, INNER, HEADS, KV_HEADS, SIZE, VOCAB, LAYERS = 32, 48, 4, 2, 8, 40, 6
CONFIG: dict[str, Any] = {
    **{
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
    },
    **{"intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "head_dim": SIZE},
    **{
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "dtype": "float32",
    },
    "tie_word_embeddings": False,
}


def save_head(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder


def layer_tensors(prefix: str, width: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a Llama layer whose attention reads so much."""
    shapes = {
        "self_attn.q_proj": (HEADS * SIZE, width),
        "self_attn.k_proj": (KV_HEADS * SIZE, width),
        "self_attn.v_proj": (KV_HEADS * SIZE, width),
        "self_attn.o_proj": (WIDTH, HEADS * SIZE),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    tensors = {f"{prefix}{name}.weight": 0.2 * torch.randn(*shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}post_attention_layernorm.weight": 1 + 0.1 * torch.randn(WIDTH)}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(LlamaConfig(**{**CONFIG, "num_hidden_layers": LAYERS})).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Any:
    return load_decoder(Checkpoint(target_folder), "float32", "cpu", kernels=kernels.load("reference", "cpu"))
