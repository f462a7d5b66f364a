"""Qwen3-MoE: a Qwen3 with experts, and a window in all layers or in none."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.moe import QWEN_MOE, qwen_mlps, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "num_local_experts"})
    biased = config.flag("attention_bias")
    attention = read_attention(config, qkv_bias=biased, o_bias=biased, qk_norm="head")
    rope = read_rope(config, attention.head_dim)
    window = config.count("sliding_window", 4096) if config.flag("use_sliding_window") else None
    moe = read_moe(
        config,
        size=config.count("moe_intermediate_size"),
        normalise=config.flag("norm_topk_prob"),
        default_top_k=8,
    )
    layers = tuple(LayerSpec(mlp=mlp, rope=rope, window=window) for mlp in qwen_mlps(config, moe))
    return read_decoder(config, attention, layers)


ARCHITECTURE = Architecture("Qwen3MoeForCausalLM", _spec, QWEN_MOE)
