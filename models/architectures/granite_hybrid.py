"""Granite 4: Mamba-2 layers and a few of attention, Granite's multipliers, an MLP or experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.moe import read_moe
from pageant.models.architectures.reading import read_activation, read_attention, read_decoder
from pageant.models.architectures.recurrent import MAMBA, MAMBA_ENDINGS, read_kinds, read_mamba
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, MoESpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "num_local_experts", "layer_types": "layers_block_type"})
    biased = config.flag("attention_bias")
    scale = config.number("attention_multiplier", 1.0)
    attention = read_attention(config, scale=scale, qkv_bias=biased, o_bias=biased)
    kind = config.text("position_embedding_type", "nope")
    if kind not in ("nope", "rope"):
        raise config.wrong("position_embedding_type", kind, "nope or rope")
    rope = read_rope(config, attention.head_dim) if kind == "rope" else None
    in_bias = config.flag("mamba_proj_bias")
    mamba = read_mamba(config, in_bias=in_bias, out_bias=in_bias)
    mlp = _mlp(config)
    kinds = read_kinds(config, ("linear_attention", "full_attention"), config.count("num_hidden_layers"))
    layers = tuple(
        LayerSpec(mlp=mlp, rope=rope)
        if kind == "full_attention"
        else LayerSpec(mlp=mlp, rope=None, attends=False, recurrent=mamba)
        for kind in kinds
    )
    return read_decoder(
        config,
        attention,
        layers,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        scales_given_embeddings=True,
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1 / config.number("logits_scaling", 1.0),
    )


def _mlp(config: Config) -> MLPSpec | MoESpec:
    shared = config.count("shared_intermediate_size", 1024)
    if config.count("num_experts", 8, minimum=0) == 0:
        return MLPSpec(size=shared, activation=read_activation(config, "hidden_act", "silu"))
    moe = read_moe(
        config,
        size=config.count("intermediate_size"),
        normalise=True,
        default_top_k=2,
        shared_size=shared,
    )
    return replace(moe, shared_switch=False)


_STACK = ".block_sparse_moe.{}_linear.{}weight"
_NAMES = replace(
    LLAMA,
    layer={
        **{theirs: ours for theirs, ours in LLAMA.layer.items() if not theirs.startswith("mlp.")},
        **MAMBA,
        "shared_mlp.input_linear": "gate_up or shared_gate_up",
        "shared_mlp.output_linear": "down or shared_down",
        "block_sparse_moe.router.layer": "router",
        "block_sparse_moe.input_linear.{expert}": "expert_gate_up",
        "block_sparse_moe.output_linear.{expert}": "expert_down",
    },
    endings=MAMBA_ENDINGS,
    stacks={_STACK.format(one, ""): _STACK.format(one, "{expert}.") for one in ("input", "output")},
)

ARCHITECTURE = Architecture("GraniteMoeHybridForCausalLM", _spec, _NAMES)
