"""Qwen3.5 (text): a Qwen3-Next whose projections are by kind, with an MLP or experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA, MTP_MODULE, Architecture
from pageant.models.architectures.moe import QWEN_MOE, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp
from pageant.models.architectures.recurrent import (
    DELTA_NET,
    DELTA_NET_ENDINGS,
    mixed_layers,
    read_delta_net,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, MLPSpec, MoESpec, NormSpec

__all__ = ["ARCHITECTURE", "MIXTURE"]


def _dense(config: Config) -> DecoderSpec:
    return _decoder(config, read_mlp(config))


def _mixture(config: Config) -> DecoderSpec:
    moe = read_moe(
        config,
        size=config.count("moe_intermediate_size", 512),
        normalise=True,
        default_top_k=8,
        shared_size=config.count("shared_expert_intermediate_size", 512),
    )
    return _decoder(config, moe)


def _decoder(config: Config, mlp: MLPSpec | MoESpec) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(
        config, default_head_dim=256, qkv_bias=biased, o_bias=biased, qk_norm="head", gated=True
    )
    rope = read_rope(config, attention.head_dim, default_share=0.25)
    mlps = (mlp,) * config.count("num_hidden_layers")
    layers = mixed_layers(config, mlps, rope, read_delta_net(config, by_head=False))
    norm = NormSpec(eps=config.number("rms_norm_eps", 1e-6), kind="wide_rms")
    return read_decoder(config, attention, layers, norm=norm)


def _names(family: Names) -> Names:
    projections = {f"linear_attn.in_proj_{part}": f"delta_{part}" for part in ("qkv", "z", "b", "a")}
    return replace(
        family,
        layer={**family.layer, **DELTA_NET, **projections},
        endings=DELTA_NET_ENDINGS,
        ignored_modules=("mtp.",),
        norm_offset=1.0,
    )


ARCHITECTURE = Architecture("Qwen3_5ForCausalLM", _dense, _names(LLAMA), MTP_MODULE)
MIXTURE = Architecture("Qwen3_5MoeForCausalLM", _mixture, _names(QWEN_MOE), MTP_MODULE)
