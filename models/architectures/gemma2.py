"""Gemma 2: norms on both sides, soft caps, windows in every other layer, scaled embeddings."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.reading import (
    layer_kinds,
    read_activation,
    read_attention,
    read_decoder,
    with_windows,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE", "GEMMA", "gemma_attention", "gemma_decoder", "gemma_mlp"]

GEMMA = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "post_mlp_norm",
        "mlp.gate_proj": "gate",
        "mlp.up_proj": "up",
        "mlp.down_proj": "down",
    },
    norm_offset=1.0,
)


def _spec(config: Config) -> DecoderSpec:
    softcap = config.number_or_none("attn_logit_softcapping", 50.0)
    attention = replace(gemma_attention(config), softcap=softcap)
    layer = LayerSpec(mlp=gemma_mlp(config), rope=read_rope(config, attention.head_dim))
    window = config.count_or_none("sliding_window", 4096)
    slides = layer_kinds(config, [number % 2 == 0 for number in range(config.count("num_hidden_layers"))])
    layers = with_windows(layer, [window if slide else None for slide in slides])
    logit_softcap = config.number_or_none("final_logit_softcapping", 30.0)
    return gemma_decoder(config, attention, layers, logit_softcap)


def gemma_attention(config: Config) -> AttentionSpec:
    """The heads, and what scales their scores."""
    config.refuse("use_bidirectional_attention", False, "Only causal attention is implemented.")
    biased = config.flag("attention_bias")
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5
    return read_attention(config, default_head_dim=256, scale=scale, qkv_bias=biased, o_bias=biased)


def gemma_mlp(config: Config) -> MLPSpec:
    """A GELU-gated MLP."""
    activation = read_activation(
        config, "hidden_activation", "gelu_pytorch_tanh", known=("gelu_tanh", "gelu", "silu")
    )
    return MLPSpec(size=config.count("intermediate_size"), activation=activation)


def gemma_decoder(
    config: Config,
    attention: AttentionSpec,
    layers: tuple[LayerSpec, ...],
    logit_softcap: float | None,
) -> DecoderSpec:
    """Return what Gemma 2 and 3 have in common around their layers."""
    return read_decoder(
        config,
        attention,
        layers,
        norm=NormSpec(eps=config.number("rms_norm_eps"), kind="wide_rms"),
        tied_by_default=True,
        arrangement="sandwich_norm",
        embedding_scale=config.count("hidden_size") ** 0.5,
        logit_softcap=logit_softcap,
    )


ARCHITECTURE = Architecture("Gemma2ForCausalLM", _spec, GEMMA)
