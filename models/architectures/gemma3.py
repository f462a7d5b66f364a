"""Gemma 3 (text): a Gemma 2 with normalised heads, and other rotations in layers with a window."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.gemma2 import GEMMA, gemma_attention, gemma_decoder, gemma_mlp
from pageant.models.architectures.reading import layer_kinds
from pageant.models.architectures.rope import read_rope, rope_from, rope_parameters
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec, RopeSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config.refuse("attn_logit_softcapping", None, "Gemma 3 has no soft cap in its attention.")
    attention = replace(gemma_attention(config), qk_norm="head")
    full_rope, sliding_rope = _ropes(config, attention.head_dim)
    mlp = gemma_mlp(config)
    full = LayerSpec(mlp=mlp, rope=full_rope)
    sliding = LayerSpec(mlp=mlp, rope=sliding_rope, window=config.count_or_none("sliding_window", 4096))
    layers = tuple(sliding if slides else full for slides in _slides(config))
    logit_softcap = config.number("final_logit_softcapping") if "final_logit_softcapping" in config else None
    return gemma_decoder(config, attention, layers, logit_softcap)


def _slides(config: Config) -> tuple[bool, ...]:
    """Return whether each layer has a window: by default five in six."""
    period = config.count("sliding_window_pattern", 6)
    return layer_kinds(
        config, [(number + 1) % period != 0 for number in range(config.count("num_hidden_layers"))]
    )


def _ropes(config: Config, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """The rotations of layers without a window, and of those with one."""
    section = rope_parameters(config)
    if "full_attention" not in section and "sliding_attention" not in section:  # before transformers 5
        theta = config.number("rope_local_base_freq", 10_000.0)
        local = RopeSpec(theta=theta, rotary_dim=head_dim)
        return read_rope(config, head_dim, default_theta=1_000_000.0), local
    full, sliding = section.section("full_attention"), section.section("sliding_attention")
    local_theta = sliding.number("rope_theta", config.number("rope_local_base_freq", 10_000.0))
    return (
        rope_from(full, config, head_dim, 1_000_000.0),
        replace(rope_from(sliding, config, head_dim, 10_000.0), theta=local_theta),
    )


ARCHITECTURE = Architecture("Gemma3ForCausalLM", _spec, GEMMA)
