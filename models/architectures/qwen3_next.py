"""Qwen3-Next: gated DeltaNets, with gated attention in every fourth layer, and experts that one joins always."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import MTP_MODULE, Architecture
from pageant.models.architectures.moe import QWEN_MOE, qwen_mlps, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder
from pageant.models.architectures.recurrent import (
    DELTA_NET,
    DELTA_NET_ENDINGS,
    mixed_layers,
    read_delta_net,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, NormSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "num_local_experts"})
    biased = config.flag("attention_bias")
    attention = read_attention(
        config, default_head_dim=256, qkv_bias=biased, o_bias=biased, qk_norm="head", gated=True
    )
    moe = read_moe(
        config,
        size=config.count("moe_intermediate_size"),
        normalise=config.flag("norm_topk_prob", True),
        default_top_k=10,
        shared_size=config.count("shared_expert_intermediate_size", 512),
    )
    rope = read_rope(config, attention.head_dim, default_share=0.25)
    layers = mixed_layers(config, qwen_mlps(config, moe), rope, read_delta_net(config, by_head=True))
    norm = NormSpec(eps=config.number("rms_norm_eps", 1e-6), kind="wide_rms")
    return read_decoder(config, attention, layers, norm=norm)


_NAMES = replace(
    QWEN_MOE,
    layer={
        **QWEN_MOE.layer,
        **DELTA_NET,
        "linear_attn.in_proj_qkvz": "delta_qkvz",
        "linear_attn.in_proj_ba": "delta_ba",
    },
    endings=DELTA_NET_ENDINGS,
    ignored_modules=("mtp.",),
    norm_offset=1.0,
)

ARCHITECTURE = Architecture("Qwen3NextForCausalLM", _spec, _NAMES, MTP_MODULE)
