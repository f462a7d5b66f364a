"""SmolLM3: a Llama in which every fourth layer turns nothing, and may have a window instead."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.reading import layer_kinds, read_attention, read_decoder, read_mlp
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    biased = config.flag("attention_bias")
    attention = read_attention(config, qkv_bias=biased, o_bias=biased)
    rope = read_rope(config, attention.head_dim, default_theta=2_000_000.0)
    layer = LayerSpec(mlp=read_mlp(config, bias=config.flag("mlp_bias")), rope=rope)
    turns = _turns(config)
    window = None
    if config.flag("use_sliding_window") and "sliding_window" in config:
        window = config.count("sliding_window")
    slides = layer_kinds(config, [window is not None and not turned for turned in turns])
    if any(slides) and window is None:  # transformers masks by the layers' kinds, whatever the switch says
        raise config.wrong("use_sliding_window", False, "true, since layer_types has sliding_attention")
    layers = tuple(
        replace(layer, rope=rope if turned else None, window=window if slide else None)
        for turned, slide in zip(turns, slides, strict=True)
    )
    return read_decoder(config, attention, layers, tied_by_default=True)


def _turns(config: Config) -> tuple[bool, ...]:
    """Return whether each layer turns its heads: by `no_rope_layers`, which says 1 for those that do."""
    num_layers = config.count("num_hidden_layers")
    turns = config.counts("no_rope_layers")
    if not turns:
        interval = config.count("no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if len(turns) != num_layers:
        raise config.wrong("no_rope_layers", list(turns), f"{num_layers} times 0 or 1")
    return tuple(map(bool, turns))


ARCHITECTURE = Architecture("SmolLM3ForCausalLM", _spec, LLAMA)
