"""Mistral 7B and its kin: a Llama whose layers may all have a sliding window."""

from __future__ import annotations

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    attention = read_attention(config)
    layer = LayerSpec(
        mlp=read_mlp(config),
        rope=read_rope(config, attention.head_dim),
        window=config.count_or_none("sliding_window", 4096),  # when absent, the first model's
    )
    return read_decoder(config, attention, repeat(layer, config))


ARCHITECTURE = Architecture("MistralForCausalLM", _spec, LLAMA)
