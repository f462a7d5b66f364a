"""OLMo 2: norms after attention and MLP instead of before, and of all queries and all keys at once."""

from __future__ import annotations

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, NormSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(config, qkv_bias=biased, o_bias=biased, qk_norm="projection")
    layer = LayerSpec(mlp=read_mlp(config), rope=read_rope(config, attention.head_dim))
    return read_decoder(
        config,
        attention,
        repeat(layer, config),
        norm=NormSpec(eps=config.number("rms_norm_eps"), kind="wide_rms"),
        arrangement="post_norm",
    )


_NAMES = Names(
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

ARCHITECTURE = Architecture("Olmo2ForCausalLM", _spec, _NAMES)
