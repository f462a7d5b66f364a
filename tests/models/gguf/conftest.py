"""Tiny random models of transformers, written as GGUF files by the `gguf` package as llama.cpp's converter does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import PreTrainedModel

from pageant import kernels
from pageant.models import Checkpoint
from pageant.models.gguf.folder import as_folder
from pageant.models.loading import load_decoder
from tests.gguf_files import write_file

COMMON = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 64},
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
LONG = {
    **{"rope_type": "longrope", "rope_theta": 10000.0},
    **{"short_factor": [1.0 + index / 10 for index in range(8)]},
    **{"long_factor": [1.0 + index for index in range(8)]},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
NORM = re.compile(r"norm|\.ln_")


@dataclass(frozen=True)
class Form:
    """A model of transformers, and what it is for llama.cpp."""

    name: str
    """The class, without ForCausalLM."""
    arch: str
    options: Mapping[str, Any]


FORMS = {
    "llama": Form("Llama", "llama", {"head_dim": 32}),
    "llama_mild": Form("Llama", "llama", {"head_dim": 32, "initializer_range": 0.06}),
    "llama3_tied": Form("Llama", "llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_biased": Form(
        "Llama", "llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR}
    ),
    "mistral": Form("Mistral", "llama", {"head_dim": 32, "sliding_window": None}),
    "mixtral": Form("Mixtral", "llama", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": Form("Qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2_yarn": Form("Qwen2", "qwen2", {"rope_parameters": YARN}),
    "qwen2_moe": Form("Qwen2Moe", "qwen2moe", EXPERTS | {"shared_expert_intermediate_size": 64}),
    "qwen3": Form("Qwen3", "qwen3", {"head_dim": 32}),
    "qwen3_moe": Form("Qwen3Moe", "qwen3moe", EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "gemma": Form("Gemma", "gemma", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": Form(
        "Gemma2",
        "gemma2",
        {
            **{"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "tie_word_embeddings": True},
            **{"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
        },
    ),
    "gemma3": Form(
        "Gemma3",
        "gemma3",
        {
            **{"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "layer_types": WINDOWS},
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "tie_word_embeddings": True,
        },
    ),
    "phi3": Form(
        "Phi3",
        "phi3",
        {
            "sliding_window": 13,
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.75}
            },
        },
    ),
    "phi3_long": Form(
        "Phi3", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 256 // 4}
    ),
    "granite": Form(
        "Granite",
        "granite",
        {
            **{"embedding_multiplier": 3.0, "attention_multiplier": 0.3},
            **{"residual_multiplier": 0.5, "logits_scaling": 2.0},
        },
    ),
    "smollm3": Form("SmolLM3", "smollm3", {"num_hidden_layers": 5}),
    "olmo2": Form("Olmo2", "olmo2", {}),
    "olmo3": Form("Olmo3", "olmo2", {"num_hidden_layers": 4, "sliding_window": 9}),
    "starcoder2": Form("Starcoder2", "starcoder2", {"sliding_window": None}),
    "gpt2": Form(
        "GPT2",
        "gpt2",
        {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "num_key_value_heads": None},
    ),
    "gpt_neox": Form("GPTNeoX", "gptneox", {"num_key_value_heads": None}),
    "gpt_oss": Form(
        "GptOss",
        "gpt-oss",
        {
            **{"head_dim": 32, "sliding_window": 7, "num_local_experts": 4, "num_experts_per_tok": 2},
            **{"intermediate_size": 64, "rope_parameters": YARN | {"truncate": False}},
        },
    ),
}


@dataclass(frozen=True)
class Written:
    """A model and its GGUF file."""

    path: Path
    model: PreTrainedModel

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(as_folder(self.path))

    def load(self, backend: str = "reference", dtype: str = "float32", **options: Any) -> Any:
        return load_decoder(self.checkpoint(), dtype, kernels=kernels.load(backend), **options)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders that are made from files go with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Written]:
    """Write a form's model as a file: matrices in one type, or in several types by parts of their names."""
    models: dict[str, tuple[PreTrainedModel, Path]] = {}

    def write(name: str, kind: str | Mapping[str, str] = "F32", edit: Any = None) -> Written:
        if name not in models:
            models[name] = _made(name, tmp_path_factory.mktemp(name))
        model, folder = models[name]
        path = tmp_path_factory.mktemp("gguf") / f"{name}.gguf"
        write_file(path, FORMS[name].arch, model.config, load_file(folder / "model.safetensors"), kind, edit)
        return Written(path, model)

    return write


def _made(name: str, folder: Path) -> tuple[PreTrainedModel, Path]:
    form = FORMS[name]
    head = "LMHeadModel" if form.name == "GPT2" else "ForCausalLM"
    text = "Text" if form.name == "Gemma3" else ""
    torch.manual_seed(len(name))
    options = {key: value for key, value in (COMMON | dict(form.options)).items() if value is not None}
    if form.options.get("sliding_window", 0) is None:
        options["sliding_window"] = None
    config = getattr(transformers, f"{form.name}{text}Config")(**options)
    model = getattr(transformers, f"{form.name}{head}")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if NORM.search(parameter_name) or parameter_name.endswith("bias"):
            is_weight = parameter_name.endswith("weight")
            parameter.data.normal_(mean=float(is_weight and "gemma" not in name), std=0.2)
    model.save_pretrained(folder)
    return model, folder
