"""Granite 3 (dense): a Llama with four multipliers, of embeddings, scores, residuals and logits."""

from __future__ import annotations

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    scale = config.number("attention_multiplier", 1.0)
    attention = read_attention(config, scale=scale, qkv_bias=biased, o_bias=biased)
    mlp = read_mlp(config, bias=config.flag("mlp_bias"))
    layer = LayerSpec(mlp=mlp, rope=read_rope(config, attention.head_dim))
    return read_decoder(
        config,
        attention,
        repeat(layer, config),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        scales_given_embeddings=True,
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )


ARCHITECTURE = Architecture("GraniteForCausalLM", _spec, LLAMA)
