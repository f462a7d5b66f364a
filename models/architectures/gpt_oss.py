"""gpt-oss: attention with sinks, a window in every other layer, and biased experts with a gating of their own."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.moe import read_moe
from pageant.models.architectures.reading import (
    layer_kinds,
    read_attention,
    read_decoder,
    with_windows,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, NormSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "num_local_experts", "num_experts_per_tok": "experts_per_token"})
    for key, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        config.refuse(key, value, "gpt-oss gates by this number, and no kernel by another.")
    biased = config.flag("attention_bias", True)
    attention = read_attention(config, default_head_dim=64, sinks=True, qkv_bias=biased, o_bias=biased)
    # Softmax over all experts, scaled to sum to one over the chosen, is the softmax over the chosen.
    moe = read_moe(config, size=config.count("intermediate_size"), normalise=True, default_top_k=4)
    layer = LayerSpec(
        mlp=replace(moe, activation="clamped_swiglu", bias=True),
        rope=read_rope(config, attention.head_dim, default_theta=150_000.0),
    )
    window = config.count_or_none("sliding_window", 128)
    alternating = [number % 2 == 0 for number in range(config.count("num_hidden_layers"))]
    windows = [window if slides else None for slides in layer_kinds(config, alternating)]
    norm = NormSpec(eps=config.number("rms_norm_eps"), kind="wide_rms")
    return read_decoder(config, attention, with_windows(layer, windows), norm=norm)


_EXPERTS = "mlp.experts"
_NAMES = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "self_attn.sinks": "sinks",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "mlp.router": "router",
        f"{_EXPERTS}.{{expert}}.gate_up_proj": "expert_gate_and_up",
        f"{_EXPERTS}.{{expert}}.down_proj": "expert_down",
    },
    endings={".self_attn.sinks": ".self_attn.sinks.weight"},
    stacks={
        f"{_EXPERTS}.{module}{ending}": f"{_EXPERTS}.{{expert}}.{module}.{kind}"
        for module in ("gate_up_proj", "down_proj")
        for ending, kind in {"": "weight", "_bias": "bias", "_blocks": "blocks", "_scales": "scales"}.items()
    },
    transposed_experts=True,
)

ARCHITECTURE = Architecture("GptOssForCausalLM", _spec, _NAMES)
