"""GPT-NeoX and Pythia: attention and MLP in parallel, a quarter of each head turned, layer norms."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE"]

_KEYS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def _spec(config: Config) -> DecoderSpec:
    config = config.using(_KEYS)
    biased = config.flag("attention_bias", True)
    attention = read_attention(config, qkv_bias=biased, o_bias=biased)
    mlp = MLPSpec(
        size=config.count("intermediate_size"),
        activation=read_activation(config, "hidden_act", "gelu", ("gelu", "gelu_tanh")),
        gated=False,
        bias=True,
    )
    layer = LayerSpec(mlp=mlp, rope=read_rope(config, attention.head_dim, default_share=0.25))
    return read_decoder(
        config,
        attention,
        repeat(layer, config),
        norm=NormSpec(eps=config.number("layer_norm_eps", 1e-5), kind="layer"),
        arrangement="parallel" if config.flag("use_parallel_residual", True) else "pre_norm",
    )


_NAMES = Names(
    model={
        "gpt_neox.embed_in": "embedding",
        "gpt_neox.final_layer_norm": "final_norm",
        "lm_head": "lm_head",
    },
    layer_prefix="gpt_neox.layers.{layer}.",
    layer={
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "attention.query_key_value": "qkv_by_head",
        "attention.dense": "o",
        "mlp.dense_h_to_4h": "up",
        "mlp.dense_4h_to_h": "down",
    },
    prefixes={"embed_out.": "lm_head."},
    ignored=(".attention.bias", ".attention.masked_bias"),
)

ARCHITECTURE = Architecture("GPTNeoXForCausalLM", _spec, _NAMES)
