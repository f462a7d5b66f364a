"""Reading multi-head latent attention from config.json, and the names of its modules."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.moe import DEEPSEEK_MOE
from pageant.models.architectures.rope import read_rope, rope_section, yarn_growth
from pageant.models.config import Config
from pageant.models.spec import AttentionSpec, LatentSpec, RopeSpec, YarnScaling

__all__ = ["LATENT_MOE", "read_latent_attention", "read_rope_of_latents"]


def read_rope_of_latents(config: Config) -> RopeSpec:
    """Read the rotary embedding, which turns all of the part of a head that is turned."""
    return read_rope(config, config.count("qk_rope_head_dim", 64))


def read_latent_attention(config: Config, rope: RopeSpec, *, in_pairs: bool = True) -> AttentionSpec:
    """Read the sizes of latents and heads; see `LatentSpec`.

    Raises CheckpointError naming the key that is missing, absurd or not supported.
    """
    latent = LatentSpec(
        rank=config.count("kv_lora_rank", 512),
        rotary=rope.rotary_dim,
        plain=config.count("qk_nope_head_dim", 128),
        value=config.count("v_head_dim", 128),
        query_rank=config.count_or_none("q_lora_rank", 1536),
        in_pairs=in_pairs,
    )
    num_heads = config.count("num_attention_heads")
    biased = config.flag("attention_bias")
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=1,
        head_dim=latent.rotary + latent.rank,
        scale=latent.query**-0.5 * _growth(config, rope),
        qkv_bias=biased,
        o_bias=biased,
        latent=latent,
    )


def _growth(config: Config, rope: RopeSpec) -> float:
    """Return the further factor of scores, where YaRN stretches positions."""
    section = rope_section(config)
    if not isinstance(rope.scaling, YarnScaling) or "mscale_all_dim" not in section:
        return 1.0
    return yarn_growth(rope.scaling.factor, section.number("mscale_all_dim")) ** 2


LATENT_MOE = replace(
    DEEPSEEK_MOE,
    layer={
        **{
            theirs: ours for theirs, ours in DEEPSEEK_MOE.layer.items() if not theirs.startswith("self_attn.")
        },
        "self_attn.q_a_proj": "query_latent",
        "self_attn.q_a_layernorm": "query_latent_norm",
        "self_attn.q_b_proj": "query_from_latent",
        "self_attn.q_proj": "query_from_stream",
        "self_attn.kv_a_proj_with_mqa": "latent",
        "self_attn.kv_a_layernorm": "latent_norm",
        "self_attn.kv_b_proj": "heads",
        "self_attn.o_proj": "o",
    },
)
