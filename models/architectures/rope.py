"""Reading the rotary embedding from config.json.

Everything here raises CheckpointError naming the key that is missing, absurd or not supported.
"""

from __future__ import annotations

from pageant.models.config import Config
from pageant.models.spec import LinearScaling, Llama3Scaling, RopeSpec

__all__ = ["read_rope", "rope_from"]

_TYPES = ("default", "linear", "llama3")


def read_rope(
    config: Config, head_dim: int, *, default_theta: float = 10_000.0, default_share: float | None = None
) -> RopeSpec:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).

    `default_share` is for families whose `partial_rotary_factor` counts: which share of a head they turn
    by default. The others turn all of it.
    """
    section = config.section("rope_parameters", "rope_scaling")
    return rope_from(section, config, head_dim, default_theta, default_share)


def rope_from(
    section: Config, config: Config, head_dim: int, default_theta: float, default_share: float | None = None
) -> RopeSpec:
    """Read a section of a configuration, and what it leaves out from the whole."""
    kind = section.text("rope_type", section.text("type", "default"))
    if kind not in _TYPES:
        known = f"one of {', '.join(_TYPES)}"
        raise section.wrong("rope_type", kind, known, "This rotary scaling is not implemented.")
    return RopeSpec(
        theta=section.number("rope_theta", config.number("rope_theta", default_theta)),
        rotary_dim=_rotary_dim(section, config, head_dim, default_share),
        scaling=_read_scaling(kind, section, config),
    )


def _rotary_dim(section: Config, config: Config, head_dim: int, default_share: float | None) -> int:
    key = "partial_rotary_factor"
    where = section if key in section else config
    share = where.number(key, default_share or 1.0)
    if default_share is None and share != 1:
        raise where.wrong(key, share, "1", "This family turns whole heads.")
    rotary_dim = int(head_dim * share)
    if share > 1 or rotary_dim == 0:
        raise where.wrong(key, share, "a share of the head, no more than 1")
    if rotary_dim % 2:
        key, value = ("head_dim", head_dim) if share == 1 else (key, share)
        raise config.wrong(key, value, "an even number, for the rotary embedding")
    return rotary_dim


def _read_scaling(kind: str, section: Config, config: Config) -> LinearScaling | Llama3Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=section.number("factor"))
    scaling = Llama3Scaling(
        factor=section.number("factor"),
        low_freq_factor=section.number("low_freq_factor"),
        high_freq_factor=section.number("high_freq_factor"),
        original_max_positions=section.count(
            "original_max_position_embeddings", config.count("max_position_embeddings")
        ),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise section.wrong("high_freq_factor", scaling.high_freq_factor, "more than low_freq_factor")
    return scaling
