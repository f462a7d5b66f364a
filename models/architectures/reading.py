"""Reading a specification from config.json: the keys that families share, each checked.

Everything here raises CheckpointError naming the key that is missing, absurd or not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pageant.models.config import Config
from pageant.models.spec import (
    Activation,
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    LinearScaling,
    MLPSpec,
    NormSpec,
    YarnScaling,
)

__all__ = [
    "layer_kinds",
    "read_activation",
    "read_attention",
    "read_decoder",
    "read_mlp",
    "read_window",
    "repeat",
    "with_windows",
]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_KINDS = ("full_attention", "sliding_attention")


def read_attention(
    config: Config, *, default_head_dim: int | None = None, scale: float | None = None, **options: Any
) -> AttentionSpec:
    """Read the heads; `options` are further fields of the specification.

    Without `default_head_dim`, heads of a configuration without `head_dim` share the hidden size.
    """
    num_heads = config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}, the query heads")
    hidden_size = config.count("hidden_size")
    if default_head_dim is None and "head_dim" not in config and hidden_size % num_heads:
        raise config.wrong("hidden_size", hidden_size, f"a multiple of num_attention_heads ({num_heads})")
    head_dim = config.count("head_dim", default_head_dim or hidden_size // num_heads)
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=scale or head_dim**-0.5,
        **options,
    )


def read_activation(
    config: Config, key: str, default: str, known: Sequence[Activation] = ("silu",)
) -> Activation:
    """Read which activation the MLPs have, one of the `known`."""
    name = config.text(key, default)
    activation = _ACTIVATIONS.get(name)
    if activation is None or activation not in known:
        expected = [theirs for theirs, ours in _ACTIVATIONS.items() if ours in known]
        raise config.wrong(
            key, name, f"one of {', '.join(expected)}", "This activation is not implemented for the family."
        )
    return activation


def read_mlp(config: Config, *, bias: bool = False) -> MLPSpec:
    """Read the SiLU-gated MLP that most families have."""
    activation = read_activation(config, "hidden_act", "silu")
    return MLPSpec(size=config.count("intermediate_size"), activation=activation, bias=bias)


def read_decoder(
    config: Config,
    attention: AttentionSpec,
    layers: tuple[LayerSpec, ...],
    *,
    norm: NormSpec | None = None,
    tied_by_default: bool = False,
    **options: Any,
) -> DecoderSpec:
    """Read the sizes and put a decoder together; `options` are further fields of it."""
    return DecoderSpec(
        vocab_size=config.count("vocab_size"),
        hidden_size=config.count("hidden_size"),
        max_model_len=_max_model_len(config, layers),
        attention=attention,
        layers=layers,
        norm=norm or NormSpec(eps=config.number("rms_norm_eps")),
        tie_word_embeddings=config.flag("tie_word_embeddings", tied_by_default),
        **options,
    )


def _max_model_len(config: Config, layers: tuple[LayerSpec, ...]) -> int:
    """The positions that the model was made for, and those that scaling its rotations adds, where all are scaled."""
    positions = config.count("max_position_embeddings")
    scalings = {layer.rope.scaling for layer in layers if layer.rope is not None}
    scaling = scalings.pop() if len(scalings) == 1 else None
    match scaling:
        case LinearScaling(factor=factor):
            return int(positions * factor)
        case YarnScaling(factor=factor, original_max_positions=original):
            return max(positions, int(original * factor))
    return positions


def repeat(layer: LayerSpec, config: Config) -> tuple[LayerSpec, ...]:
    """Return as many layers of one kind as the configuration says."""
    return (layer,) * config.count("num_hidden_layers")


def with_windows(layer: LayerSpec, windows: Sequence[int | None]) -> tuple[LayerSpec, ...]:
    """A layer for each window, otherwise all the same."""
    return tuple(replace(layer, window=window) for window in windows)


def read_window(config: Config) -> int | None:
    """The window that all layers have; none when the key is null or absent."""
    return config.count("sliding_window") if "sliding_window" in config else None


def layer_kinds(config: Config, default: Sequence[bool]) -> tuple[bool, ...]:
    """Return whether each layer has a window, by `layer_types`, else as in `default`, which is one for each."""
    kinds = config.texts("layer_types")
    if not kinds:
        return tuple(default)
    if len(kinds) != len(default) or set(kinds) - set(_KINDS):
        expected = f"{len(default)} times sliding_attention or full_attention"
        raise config.wrong("layer_types", list(kinds), expected)
    return tuple(kind == "sliding_attention" for kind in kinds)
