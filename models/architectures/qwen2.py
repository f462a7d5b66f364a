"""Qwen2 and Qwen2.5: a Llama with biases on queries, keys and values, and optional windows."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture, llama_places, llama_spec, qwen_windows
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    return replace(llama_spec(config), qkv_bias=True, layer_windows=qwen_windows(config))


ARCHITECTURE = Architecture("Qwen2ForCausalLM", _spec, llama_places)
