"""StarCoder 2: a Llama with layer norms, biases, a GELU without a gate, and one window for all."""

from __future__ import annotations

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.reading import (
    read_activation,
    read_attention,
    read_decoder,
    read_window,
    repeat,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("use_bias", True)
    attention = read_attention(config, qkv_bias=biased, o_bias=biased)
    mlp = MLPSpec(
        size=config.count("intermediate_size"),
        activation=read_activation(config, "hidden_act", "gelu_pytorch_tanh", ("gelu_tanh", "gelu")),
        gated=False,
        bias=biased,
    )
    rope = read_rope(config, attention.head_dim)
    return read_decoder(
        config,
        attention,
        repeat(LayerSpec(mlp=mlp, rope=rope, window=read_window(config)), config),
        norm=NormSpec(eps=config.number("norm_epsilon", 1e-5), kind="layer"),
        tied_by_default=True,
    )


_NAMES = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "mlp.c_fc": "up",
        "mlp.c_proj": "down",
    },
)

ARCHITECTURE = Architecture("Starcoder2ForCausalLM", _spec, _NAMES)
