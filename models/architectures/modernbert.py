"""ModernBERT: an encoder with rotary embeddings, gated MLPs, and windows in two of three layers."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.reading import layer_kinds, read_activation, read_attention, read_decoder
from pageant.models.architectures.rope import rope_from
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, NormSpec, RopeSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(config, qkv_bias=biased, o_bias=biased)
    mlp = MLPSpec(
        size=config.count("intermediate_size"),
        activation=read_activation(config, "hidden_activation", "gelu", ("gelu", "gelu_tanh", "silu")),
        bias=config.flag("mlp_bias"),
    )
    full_rope, sliding_rope = _ropes(config, attention.head_dim)
    full = LayerSpec(mlp=mlp, rope=full_rope)
    reach = config.count("local_attention", 128) // 2  # tokens on either side
    sliding = LayerSpec(mlp=mlp, rope=sliding_rope, window=2 * reach + 1)
    period = config.count("global_attn_every_n_layers", 3)
    slides = layer_kinds(
        config, [number % period != 0 for number in range(config.count("num_hidden_layers"))]
    )
    first, *others = (sliding if slide else full for slide in slides)
    return read_decoder(
        config,
        attention,
        (replace(first, attention_norm=False), *others),
        norm=NormSpec(eps=config.number("norm_eps", 1e-5), kind="layer", bias=config.flag("norm_bias")),
        is_causal=False,
        has_head=False,
        embedding_norm=True,
    )


def _ropes(config: Config, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Return the rotations of layers without a window, and of those with one."""
    section = config.section("rope_parameters")
    full, sliding = section.section("full_attention"), section.section("sliding_attention")
    scaling = config.section("rope_scaling")
    return (
        replace(
            rope_from(full if full.values else scaling, config, head_dim, 160_000.0),
            theta=full.number("rope_theta", config.number("global_rope_theta", 160_000.0)),
        ),
        replace(
            rope_from(sliding if sliding.values else scaling, config, head_dim, 10_000.0),
            theta=sliding.number("rope_theta", config.number("local_rope_theta", 10_000.0)),
        ),
    )


_NAMES = Names(
    model={
        "embeddings.tok_embeddings": "embedding",
        "embeddings.norm": "embedding_norm",
        "final_norm": "final_norm",
    },
    layer_prefix="layers.{layer}.",
    layer={
        "attn_norm": "attention_norm",
        "attn.Wqkv": "qkv",
        "attn.Wo": "o",
        "mlp_norm": "mlp_norm",
        "mlp.Wi": "gate_up",
        "mlp.Wo": "down",
    },
    prefixes={"model.": ""},
    ignored_modules=("head.", "classifier.", "decoder."),
)

ARCHITECTURE = Architecture("ModernBertModel", _spec, _NAMES)
