"""Llama 1 to 3, and the many models that are Llamas by another name."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture, llama_places, llama_spec
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    return replace(llama_spec(config), qkv_bias=attention_bias, o_bias=attention_bias, mlp_bias=mlp_bias)


ARCHITECTURE = Architecture("LlamaForCausalLM", _spec, llama_places)
