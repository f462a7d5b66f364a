"""GPT-2: learned positions, layer norms, biases everywhere, and matrices saved the other way round."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder, repeat
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec

__all__ = ["ARCHITECTURE"]

_KEYS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _spec(config: Config) -> DecoderSpec:
    config = config.using(_KEYS)
    config.refuse("scale_attn_by_inverse_layer_idx", False, "Scaling by the layer is not implemented.")
    config.refuse("add_cross_attention", False, "Cross-attention is not implemented.")
    scale = None if config.flag("scale_attn_weights", True) else 1.0
    attention = read_attention(config, scale=scale, qkv_bias=True, o_bias=True)
    mlp = MLPSpec(
        size=config.count("n_inner", 4 * config.count("hidden_size")),
        activation=read_activation(config, "activation_function", "gelu_new", ("gelu_tanh", "gelu")),
        gated=False,
        bias=True,
    )
    return read_decoder(
        config,
        attention,
        repeat(LayerSpec(mlp=mlp, rope=None), config),
        norm=NormSpec(eps=config.number("layer_norm_epsilon", 1e-5), kind="layer"),
        tied_by_default=True,
        learned_positions=True,
    )


_NAMES = Names(
    model={
        "transformer.wte": "embedding",
        "transformer.wpe": "position_embedding",
        "transformer.ln_f": "final_norm",
        "lm_head": "lm_head",
    },
    layer_prefix="transformer.h.{layer}.",
    layer={
        "ln_1": "attention_norm",
        "ln_2": "mlp_norm",
        "attn.c_attn": "qkv",
        "attn.c_proj": "o",
        "mlp.c_fc": "up",
        "mlp.c_proj": "down",
    },
    prefixes={prefix: f"transformer.{prefix}" for prefix in ("wte.", "wpe.", "h.", "ln_f.")},
    ignored=(".attn.bias", ".attn.masked_bias"),
    transposed=True,
)

ARCHITECTURE = Architecture("GPT2LMHeadModel", _spec, _NAMES)
