"""Qwen2 and Qwen2.5: a Llama with biases on queries, keys and values, and optional windows."""

from __future__ import annotations

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import (
    layer_kinds,
    read_attention,
    read_decoder,
    read_mlp,
    with_windows,
)
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE", "qwen_windows"]


def _spec(config: Config) -> DecoderSpec:
    attention = read_attention(config, qkv_bias=True)
    layer = LayerSpec(mlp=read_mlp(config), rope=read_rope(config, attention.head_dim))
    return read_decoder(config, attention, with_windows(layer, qwen_windows(config)))


def qwen_windows(config: Config) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types`, or from `max_window_layers` on, and only if switched on."""
    num_layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window"):
        return (None,) * num_layers
    window = config.count("sliding_window", 4096)
    first = config.count("max_window_layers", 28, minimum=0)
    slides = layer_kinds(config, [layer >= first for layer in range(num_layers)])
    return tuple(window if slide else None for slide in slides)


ARCHITECTURE = Architecture("Qwen2ForCausalLM", _spec, LLAMA)
