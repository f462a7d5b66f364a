"""Reading the rotary embedding from config.json.

Everything here raises CheckpointError naming the key that is missing, absurd or not supported.
"""

from __future__ import annotations

import math

from pageant.models.config import Config
from pageant.models.spec import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)

__all__ = ["read_rope", "rope_from", "rope_parameters", "rope_section", "yarn_growth"]

_NEW_NAMES = {"type": "rope_type"}
_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")


def read_rope(
    config: Config,
    head_dim: int,
    *,
    default_theta: float = 10_000.0,
    default_share: float | None = None,
) -> RopeSpec:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).

    `default_share` is for families whose `partial_rotary_factor` counts: which share of a head they turn
    by default. The others turn all of it.
    """
    return rope_from(rope_section(config), config, head_dim, default_theta, default_share)


def rope_section(config: Config) -> Config:
    """Return the section that the rotary embedding is read from."""
    return rope_parameters(config) if "rope_parameters" in config else config.section("rope_scaling")


def rope_parameters(config: Config) -> Config:
    """The section of that name. A `rope_scaling` beside it may not say otherwise: it would be passed over here, while
    transformers would pass over the section, and the base of its rotation with that."""
    section = config.section("rope_parameters")
    said = section.values.get("full_attention") or section.values
    beside = config.section("rope_scaling").values if section.values else {}
    if any(said.get(_NEW_NAMES.get(key, key)) != value for key, value in beside.items()):
        raise config.wrong(
            "rope_scaling",
            beside,
            "nothing that rope_parameters does not say too",
            "Put it into rope_parameters, in place of what is there.",
        )
    return section


def rope_from(
    section: Config, config: Config, head_dim: int, default_theta: float, default_share: float | None = None
) -> RopeSpec:
    """Read a section of a configuration, and what it leaves out from the whole."""
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "su" or (kind == "yarn" and "short_factor" in section):  # Phi-3's before it had a name
        kind = "longrope"
    if kind not in _TYPES:
        known = f"one of {', '.join(_TYPES)}"
        raise section.wrong("rope_type", kind, known, "This rotary scaling is not implemented.")
    rotary_dim = _rotary_dim(section, config, head_dim, default_share)
    return RopeSpec(
        theta=section.number("rope_theta", config.number("rope_theta", default_theta)),
        rotary_dim=rotary_dim,
        scaling=_read_scaling(kind, section, config, rotary_dim),
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


def _read_scaling(kind: str, section: Config, config: Config, rotary_dim: int) -> RopeScaling | None:
    if kind in ("default", "dynamic"):  # dynamic scaling begins where the positions that are served end
        return None
    if kind == "linear":
        return LinearScaling(factor=section.number("factor"))
    where = config if "original_max_position_embeddings" in config else section
    longest = config.count("max_position_embeddings")
    original = where.count("original_max_position_embeddings", longest)
    if kind == "llama3":
        return _read_llama3(section, original)
    factor = section.number("factor", longest / original)
    if kind == "yarn":
        return _read_yarn(section, original, factor)
    if factor > 1 and original == 1:
        raise where.wrong("original_max_position_embeddings", original, "a whole number from 2 up")
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRopeScaling(
        short_factors=_factors(section, "short_factor", rotary_dim // 2),
        long_factors=_factors(section, "long_factor", rotary_dim // 2),
        attention_factor=section.number("attention_factor", default),
        original_max_positions=original,
    )


def _read_llama3(section: Config, original: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=section.number("factor"),
        low_freq_factor=section.number("low_freq_factor"),
        high_freq_factor=section.number("high_freq_factor"),
        original_max_positions=original,
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise section.wrong("high_freq_factor", scaling.high_freq_factor, "more than low_freq_factor")
    return scaling


def yarn_growth(factor: float, weight: float = 1.0) -> float:
    """Return by how much YaRN lets numbers grow where positions are stretched by a factor."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _read_yarn(section: Config, original: int, factor: float) -> YarnScaling:
    default = yarn_growth(factor)
    if "mscale" in section and "mscale_all_dim" in section:  # DeepSeek's
        of_all = section.number("mscale_all_dim")
        default = yarn_growth(factor, section.number("mscale")) / yarn_growth(factor, of_all)
    scaling = YarnScaling(
        factor=factor,
        attention_factor=section.number("attention_factor", default),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        original_max_positions=original,
    )
    if scaling.beta_fast < scaling.beta_slow:
        raise section.wrong("beta_fast", scaling.beta_fast, "no less than beta_slow")
    return scaling


def _factors(section: Config, key: str, count: int) -> tuple[float, ...]:
    factors = section.numbers(key)
    if len(factors) != count:
        raise section.wrong(key, list(factors), f"{count} positive numbers, one for each frequency")
    return factors
