"""OLMo 3: an OLMo 2 with a window in three of four layers, and rotary scaling only in the fourth."""

from __future__ import annotations

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.olmo2 import OLMO, olmo_attention, olmo_decoder
from pageant.models.architectures.reading import layer_kinds, read_mlp
from pageant.models.architectures.rope import read_rope, rope_from, rope_parameters
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec, RopeSpec

__all__ = ["ARCHITECTURE"]

_THETA = 500_000.0


def _spec(config: Config) -> DecoderSpec:
    attention = olmo_attention(config)
    full_rope, sliding_rope = _ropes(config, attention.head_dim)
    mlp = read_mlp(config)
    full = LayerSpec(mlp=mlp, rope=full_rope)
    sliding = LayerSpec(mlp=mlp, rope=sliding_rope, window=config.count_or_none("sliding_window", 4096))
    by_default = [(number + 1) % 4 != 0 for number in range(config.count("num_hidden_layers"))]
    layers = tuple(sliding if slides else full for slides in layer_kinds(config, by_default))
    return olmo_decoder(config, attention, layers)


def _ropes(config: Config, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """The rotations of layers without a window, and of those with one."""
    section = rope_parameters(config)
    if "full_attention" not in section and "sliding_attention" not in section:  # before transformers 5
        theta = config.number("rope_theta", _THETA)
        full = read_rope(config, head_dim, default_theta=_THETA)
        return full, RopeSpec(theta=theta, rotary_dim=full.rotary_dim)
    full_section, sliding_section = section.section("full_attention"), section.section("sliding_attention")
    return (
        rope_from(full_section, config, head_dim, _THETA),
        rope_from(sliding_section, config, head_dim, _THETA),
    )


ARCHITECTURE = Architecture("Olmo3ForCausalLM", _spec, OLMO)
