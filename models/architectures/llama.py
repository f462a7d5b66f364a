"""Llama 1 to 3, and the many models that are Llamas by another name."""

from __future__ import annotations

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(config, qkv_bias=biased, o_bias=biased)
    mlp = read_mlp(config, bias=config.flag("mlp_bias"))
    layer = LayerSpec(mlp=mlp, rope=read_rope(config, attention.head_dim))
    return read_decoder(config, attention, repeat(layer, config))


ARCHITECTURE = Architecture("LlamaForCausalLM", _spec, LLAMA)
