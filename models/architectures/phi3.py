"""Phi-3 and Phi-4: a Llama whose fused projections come fused, and which may turn part of a head."""

from __future__ import annotations

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import (
    read_attention,
    read_decoder,
    read_mlp,
    read_window,
    repeat,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    attention = read_attention(config)
    layer = LayerSpec(
        mlp=read_mlp(config),
        rope=read_rope(config, attention.head_dim, default_share=1.0),
        window=read_window(config),
    )
    return read_decoder(config, attention, repeat(layer, config))


_NAMES = Names(
    model=LLAMA.model,
    layer={
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "self_attn.qkv_proj": "qkv",
        "self_attn.o_proj": "o",
        "mlp.gate_up_proj": "gate_up",
        "mlp.down_proj": "down",
    },
)

ARCHITECTURE = Architecture("Phi3ForCausalLM", _spec, _NAMES)
