"""OLMo 2: norms after attention and MLP instead of before, and of all queries and all keys at once."""

from __future__ import annotations

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import AttentionSpec, DecoderSpec, LayerSpec, NormSpec

__all__ = ["ARCHITECTURE", "OLMO", "olmo_attention", "olmo_decoder"]


OLMO = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_mlp_norm",
        "mlp.gate_proj": "gate",
        "mlp.up_proj": "up",
        "mlp.down_proj": "down",
    },
)


def _spec(config: Config) -> DecoderSpec:
    attention = olmo_attention(config)
    layer = LayerSpec(mlp=read_mlp(config), rope=read_rope(config, attention.head_dim))
    return olmo_decoder(config, attention, repeat(layer, config))


def olmo_attention(config: Config) -> AttentionSpec:
    """The heads, all queries normalised at once, and all keys."""
    biased = config.flag("attention_bias")
    return read_attention(config, qkv_bias=biased, o_bias=biased, qk_norm="projection")


def olmo_decoder(config: Config, attention: AttentionSpec, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    """Return what OLMo 2 and 3 have in common around their layers."""
    return read_decoder(
        config,
        attention,
        layers,
        norm=NormSpec(eps=config.number("rms_norm_eps"), kind="wide_rms"),
        arrangement="post_norm",
    )


ARCHITECTURE = Architecture("Olmo2ForCausalLM", _spec, OLMO)
