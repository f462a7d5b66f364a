"""Gemma (the first): a Llama with a GELU, scaled embeddings, and norms that add one to their weight."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config.refuse("use_bidirectional_attention", False, "Only causal attention is implemented.")
    biased = config.flag("attention_bias")
    attention = read_attention(config, default_head_dim=256, qkv_bias=biased, o_bias=biased)
    activation = read_activation(config, "hidden_act", "gelu_pytorch_tanh", ("gelu_tanh", "gelu"))
    if activation == "gelu":  # the first exports say so, and mean the approximation
        activation = "gelu_tanh"
    mlp = MLPSpec(size=config.count("intermediate_size"), activation=activation)
    return read_decoder(
        config,
        attention,
        repeat(LayerSpec(mlp=mlp, rope=read_rope(config, attention.head_dim)), config),
        norm=NormSpec(eps=config.number("rms_norm_eps"), kind="wide_rms"),
        tied_by_default=True,
        embedding_scale=config.count("hidden_size") ** 0.5,
    )


ARCHITECTURE = Architecture("GemmaForCausalLM", _spec, replace(LLAMA, norm_offset=1.0))
