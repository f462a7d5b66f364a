"""Qwen1.5-MoE and Qwen2-MoE: a Qwen2 with experts, and one that all tokens share behind a gate."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.moe import QWEN_MOE, qwen_mlps, read_moe
from pageant.models.architectures.reading import layer_kinds, read_attention, read_decoder
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    attention = read_attention(config, qkv_bias=config.flag("qkv_bias", True))
    rope = read_rope(config, attention.head_dim)
    moe = read_moe(
        config,
        size=config.count("moe_intermediate_size"),
        normalise=config.flag("norm_topk_prob"),
        default_top_k=4,
        shared_size=config.count("shared_expert_intermediate_size"),
    )
    layers = tuple(
        LayerSpec(mlp=mlp, rope=rope, window=window)
        for mlp, window in zip(qwen_mlps(config, moe), _windows(config), strict=True)
    )
    return read_decoder(config, attention, layers)


def _windows(config: Config) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types`, or every other one below `max_window_layers`."""
    num_layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window"):
        return (None,) * num_layers
    window = config.count("sliding_window", 4096)
    end = config.count("max_window_layers", 28, minimum=0)
    slides = layer_kinds(config, [layer % 2 == 0 and layer < end for layer in range(num_layers)])
    return tuple(window if slide else None for slide in slides)


ARCHITECTURE = Architecture("Qwen2MoeForCausalLM", _spec, QWEN_MOE)
