"""What the architectures share: Llama's configuration keys and Llama's tensor names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LinearScaling, Llama3Scaling, RopeSpec
from pageant.models.weights import Place, Places

__all__ = ["Architecture", "llama_places", "llama_spec", "qwen_windows", "read_rope"]

_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A family of models, by the name that config.json's `architectures` has for it."""

    name: str
    spec: Callable[[Config], DecoderSpec]
    """Raises CheckpointError when the configuration makes no sense or is not supported."""
    places: Callable[[DecoderSpec], Places]


def llama_spec(config: Config, default_head_dim: int | None = None) -> DecoderSpec:
    """Read the keys that all Llama-like families share. A family replaces what it does otherwise.

    Without `default_head_dim`, heads of a configuration without `head_dim` share the hidden size.
    Raises CheckpointError naming the key that is missing, absurd or not supported.
    """
    hidden_size = config.count("hidden_size")
    num_heads = config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}, the query heads")
    num_layers = config.count("num_hidden_layers")
    return DecoderSpec(
        vocab_size=config.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, hidden_size, num_heads, default_head_dim),
        rms_norm_eps=config.number("rms_norm_eps"),
        rope=read_rope(config),
        max_model_len=config.count("max_position_embeddings"),
        layer_windows=(None,) * num_layers,
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        activation=_activation(config),
    )


def _head_dim(config: Config, hidden_size: int, num_heads: int, default: int | None) -> int:
    if default is None and "head_dim" not in config and hidden_size % num_heads:
        raise config.wrong("hidden_size", hidden_size, f"a multiple of num_attention_heads ({num_heads})")
    head_dim = config.count("head_dim", default or hidden_size // num_heads)
    if head_dim % 2:
        raise config.wrong("head_dim", head_dim, "an even number, for the rotary embedding")
    return head_dim


def _activation(config: Config) -> str:
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise config.wrong("hidden_act", activation, "'silu'", "Only SiLU-gated MLPs are implemented.")
    return activation


def read_rope(config: Config) -> RopeSpec:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).

    Raises CheckpointError for a scaling that is not implemented.
    """
    rope = config.section("rope_parameters", "rope_scaling")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _ROPE_TYPES:
        raise rope.wrong(
            "rope_type", kind, f"one of {', '.join(_ROPE_TYPES)}", "This rotary scaling is not implemented."
        )
    rotated = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if rotated != 1:
        raise rope.wrong(
            "partial_rotary_factor", rotated, "1", "Partial rotary embedding is not implemented."
        )
    theta = rope.number("rope_theta", config.number("rope_theta", 10_000.0))
    return RopeSpec(theta=theta, scaling=_read_scaling(kind, rope, config))


def _read_scaling(kind: str, rope: Config, config: Config) -> LinearScaling | Llama3Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=rope.number("factor"))
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_positions=rope.count(
            "original_max_position_embeddings", config.count("max_position_embeddings")
        ),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise rope.wrong("high_freq_factor", scaling.high_freq_factor, "more than low_freq_factor")
    return scaling


def qwen_windows(config: Config) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types`, or from `max_window_layers` on, and only if switched on."""
    num_layers = config.count("num_hidden_layers")
    if not config.flag("use_sliding_window"):
        return (None,) * num_layers
    window = config.count("sliding_window", 4096)
    full_layers = config.count("max_window_layers", 28, minimum=0)
    kinds = config.texts("layer_types") or tuple(
        "sliding_attention" if layer >= full_layers else "full_attention" for layer in range(num_layers)
    )
    if len(kinds) != num_layers or set(kinds) - {"sliding_attention", "full_attention"}:
        expected = f"{num_layers} times sliding_attention or full_attention"
        raise config.wrong("layer_types", list(kinds), expected)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def llama_places(spec: DecoderSpec) -> dict[str, Place]:
    """Where the tensors of a checkpoint that uses Llama's names go."""
    places = {
        "model.embed_tokens.weight": Place("embedding", None, 0, (spec.vocab_size, spec.hidden_size)),
        "model.norm.weight": Place("final_norm", None, 0, (spec.hidden_size,)),
    }
    if not spec.tie_word_embeddings:
        places["lm_head.weight"] = Place("lm_head", None, 0, (spec.vocab_size, spec.hidden_size))
    for layer in range(spec.num_layers):
        for name, place in _layer_places(spec, layer).items():
            places[f"model.layers.{layer}.{name}"] = place
    return places


def _layer_places(spec: DecoderSpec, layer: int) -> dict[str, Place]:
    hidden, query, kv, inner = spec.hidden_size, spec.query_size, spec.kv_size, spec.intermediate_size
    places = {
        "input_layernorm.weight": Place("attention_norm", layer, 0, (hidden,)),
        "post_attention_layernorm.weight": Place("mlp_norm", layer, 0, (hidden,)),
    }
    projections = (
        # checkpoint's name, ours, first row, rows, columns, whether it has a bias
        ("self_attn.q_proj", "qkv", 0, query, hidden, spec.qkv_bias),
        ("self_attn.k_proj", "qkv", query, kv, hidden, spec.qkv_bias),
        ("self_attn.v_proj", "qkv", query + kv, kv, hidden, spec.qkv_bias),
        ("self_attn.o_proj", "o", 0, hidden, query, spec.o_bias),
        ("mlp.gate_proj", "gate_up", 0, inner, hidden, spec.mlp_bias),
        ("mlp.up_proj", "gate_up", inner, inner, hidden, spec.mlp_bias),
        ("mlp.down_proj", "down", 0, hidden, inner, spec.mlp_bias),
    )
    for theirs, ours, row, rows, columns, has_bias in projections:
        places[f"{theirs}.weight"] = Place(f"{ours}_weight", layer, row, (rows, columns))
        if has_bias:
            places[f"{theirs}.bias"] = Place(f"{ours}_bias", layer, row, (rows,))
    if spec.qk_norm:
        places["self_attn.q_norm.weight"] = Place("query_norm", layer, 0, (spec.head_dim,))
        places["self_attn.k_norm.weight"] = Place("key_norm", layer, 0, (spec.head_dim,))
    return places
