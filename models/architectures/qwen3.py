"""Qwen3 (dense): a Llama that normalises each head of its queries and keys, with optional windows."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture, llama_places, llama_spec, qwen_windows
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    attention_bias = config.flag("attention_bias")
    return replace(
        llama_spec(config, default_head_dim=128),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        qk_norm=True,
        layer_windows=qwen_windows(config),
    )


ARCHITECTURE = Architecture("Qwen3ForCausalLM", _spec, llama_places)
