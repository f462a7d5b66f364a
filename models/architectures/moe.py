"""Reading mixtures of experts from config.json, and the names that Qwen's have."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA
from pageant.models.architectures.reading import read_activation, read_mlp
from pageant.models.config import Config
from pageant.models.spec import MLPSpec, MoESpec

__all__ = ["QWEN_MOE", "chosen_by_sigmoid", "qwen_mlps", "read_moe"]

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


def chosen_by_sigmoid(config: Config, moe: MoESpec) -> MoESpec:
    """Return a mixture whose experts are chosen by sigmoids, of some of the groups that they are in.

    Raises CheckpointError naming the key that is absurd or not supported.
    """
    config.refuse("scoring_func", "sigmoid", "The family's experts are chosen by sigmoids.")
    groups = config.count("n_group", 1)
    if moe.num_experts % groups or (groups > 1 and moe.num_experts < 2 * groups):
        raise config.wrong(
            "n_group", groups, f"a divisor of {moe.num_experts} that leaves groups of two or more"
        )
    kept = config.count("topk_group", 1)
    if kept > groups:
        raise config.wrong("topk_group", kept, f"no more than the {groups} groups")
    if moe.top_k > moe.num_experts // groups * kept:
        raise config.wrong("topk_group", kept, f"groups that have {moe.top_k} experts together")
    scale = config.number("routed_scaling_factor", 1.0)
    return replace(moe, scores="sigmoid", groups=groups, groups_kept=kept, scale=scale)


def qwen_mlps(config: Config, moe: MoESpec) -> tuple[MLPSpec | MoESpec, ...]:
    """Return what each layer of a Qwen mixture has: experts in every so many layers, but for some exceptions."""
    step = config.count("decoder_sparse_step", 1)
    dense_layers = config.counts("mlp_only_layers")
    dense = read_mlp(config)
    return tuple(
        dense if layer in dense_layers or (layer + 1) % step else moe
        for layer in range(config.count("num_hidden_layers"))
    )
