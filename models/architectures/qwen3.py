"""Qwen3 (dense): a Llama that normalises each head of its queries and keys, with optional windows."""

from __future__ import annotations

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.qwen2 import qwen_windows
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp, with_windows
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(config, default_head_dim=128, qkv_bias=biased, o_bias=biased, qk_norm="head")
    layer = LayerSpec(mlp=read_mlp(config), rope=read_rope(config, attention.head_dim))
    return read_decoder(config, attention, with_windows(layer, qwen_windows(config)))


ARCHITECTURE = Architecture("Qwen3ForCausalLM", _spec, LLAMA)
