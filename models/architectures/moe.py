"""Reading mixtures of experts from config.json, and the names that Qwen's have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pageant.models.architectures.common import LLAMA
from pageant.models.architectures.reading import read_activation, read_mlp
from pageant.models.config import Config
from pageant.models.spec import MLPSpec, MoESpec

__all__ = [
    "DEEPSEEK_MOE",
    "QWEN_MOE",
    "chosen_by_sigmoid",
    "dense_first",
    "in_groups",
    "qwen_mlps",
    "read_moe",
]

QWEN_MOE = replace(
    LLAMA,
    layer={
        **LLAMA.layer,
        "mlp.gate": "router",
        "mlp.experts.{expert}.gate_proj": "expert_gate",
        "mlp.experts.{expert}.up_proj": "expert_up",
        "mlp.experts.{expert}.down_proj": "expert_down",
        "mlp.shared_expert.gate_proj": "shared_gate",
        "mlp.shared_expert.up_proj": "shared_up",
        "mlp.shared_expert.down_proj": "shared_down",
        "mlp.shared_expert_gate": "shared_switch",
    },
)

DEEPSEEK_MOE = replace(
    LLAMA,
    layer={
        **LLAMA.layer,
        "mlp.gate": "router",
        "mlp.gate.correction": "router_correction",
        "mlp.experts.{expert}.gate_proj": "expert_gate",
        "mlp.experts.{expert}.up_proj": "expert_up",
        "mlp.experts.{expert}.down_proj": "expert_down",
        "mlp.shared_experts.gate_proj": "shared_gate",
        "mlp.shared_experts.up_proj": "shared_up",
        "mlp.shared_experts.down_proj": "shared_down",
    },
    endings={".mlp.gate.e_score_correction_bias": ".mlp.gate.correction.weight"},
    ignores_later_layers=True,
)
"""Names of mixtures that sigmoids choose from, and those of DeepSeek-V2 before them."""


def read_moe(
    config: Config, *, size: int, normalise: bool, default_top_k: int, shared_size: int | None = None
) -> MoESpec:
    """Read the number of experts, and how many of them a token goes to.

    Raises CheckpointError naming the key that is missing, absurd or not supported.
    """
    num_experts = config.count("num_experts")
    top_k = config.count("num_experts_per_tok", default_top_k)
    if top_k > num_experts:
        raise config.wrong("num_experts_per_tok", top_k, f"no more than the {num_experts} experts")
    return MoESpec(
        num_experts=num_experts,
        top_k=top_k,
        size=size,
        normalise=normalise,
        activation=read_activation(config, "hidden_act", "silu"),
        shared_size=shared_size,
    )


def chosen_by_sigmoid(config: Config, moe: MoESpec, **defaults: Any) -> MoESpec:
    """Return a mixture whose experts are chosen by sigmoids, of some of the groups that they are in (`in_groups`).

    Raises CheckpointError naming the key that is absurd or not supported.
    """
    config.refuse("scoring_func", "sigmoid", "The family's experts are chosen by sigmoids.")
    return replace(in_groups(config, moe, **defaults), scores="sigmoid")


def in_groups(
    config: Config, moe: MoESpec, default_groups: int = 1, default_kept: int = 1, default_scale: float = 1.0
) -> MoESpec:
    """Return a mixture whose experts are chosen of some of the groups that they are in, and are scaled.

    Raises CheckpointError naming the key that is absurd.
    """
    groups = config.count("n_group", default_groups)
    if moe.num_experts % groups or (groups > 1 and moe.num_experts < 2 * groups):
        raise config.wrong(
            "n_group", groups, f"a divisor of {moe.num_experts} that leaves groups of two or more"
        )
    kept = config.count("topk_group", default_kept)
    if kept > groups:
        raise config.wrong("topk_group", kept, f"no more than the {groups} groups")
    if moe.top_k > moe.num_experts // groups * kept:
        raise config.wrong("topk_group", kept, f"groups that have {moe.top_k} experts together")
    scale = config.number("routed_scaling_factor", default_scale)
    return replace(moe, groups=groups, groups_kept=kept, scale=scale)


def dense_first(config: Config, moe: MoESpec, default: int = 0) -> tuple[MLPSpec | MoESpec, ...]:
    """Return what each layer has: dense MLPs in the first ones (`first_k_dense_replace`), experts in the others."""
    num_dense = config.count("first_k_dense_replace", default, minimum=0)
    dense = read_mlp(config)
    return tuple(dense if layer < num_dense else moe for layer in range(config.count("num_hidden_layers")))


def qwen_mlps(config: Config, moe: MoESpec) -> tuple[MLPSpec | MoESpec, ...]:
    """Return what each layer of a Qwen mixture has: experts in every so many layers, but for some exceptions."""
    step = config.count("decoder_sparse_step", 1)
    dense_layers = config.counts("mlp_only_layers")
    dense = read_mlp(config)
    return tuple(
        dense if layer in dense_layers or (layer + 1) % step else moe
        for layer in range(config.count("num_hidden_layers"))
    )
