"""Nemotron-H: each layer is one thing alone, Mamba-2, attention without rotation, an MLP without a gate, or experts."""

from __future__ import annotations

import math
from dataclasses import replace

from pageant.models.architectures.common import Architecture
from pageant.models.architectures.moe import chosen_by_sigmoid, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder
from pageant.models.architectures.recurrent import read_kinds, read_mamba
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec, MLPSpec, MoESpec, NormSpec

__all__ = ["ARCHITECTURE"]

_OTHER_NAMES = {
    "layer_types": "layers_block_type",
    "num_experts": "n_routed_experts",
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim",
    "mamba_n_groups": "n_groups",
    "mamba_d_state": "ssm_state_size",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "rms_norm_eps": "layer_norm_epsilon",
}
_KINDS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def _spec(config: Config) -> DecoderSpec:
    config = config.using(_OTHER_NAMES)
    config.refuse("mlp_hidden_act", "relu2", "The family's MLPs have squares of what is positive.")
    config.refuse(
        "mamba_hidden_act", "silu", "The convolution's activation is SiLU in all that are implemented."
    )
    config.refuse("moe_latent_size", None, "Experts between latents are not in this version.")
    config.refuse("sliding_window", None, "Attention is over all tokens in all that are implemented.")
    kinds = _kinds(config)
    attention = read_attention(config, default_head_dim=128)
    num_heads, head_dim = config.count("mamba_n_heads", 128), config.count("mamba_d_head", 64)
    biased = config.flag("use_bias")
    mamba = read_mamba(
        config,
        values_size=num_heads * head_dim,
        in_bias=biased,
        out_bias=biased,
        # Not `time_step_limit`, as in transformers.
        time_step_limits=(config.number("time_step_min", 0.001), math.inf),
    )
    mlp_of = {"mlp": _mlp(config)}
    if "moe" in kinds:
        mlp_of |= {"moe": _moe(config)}
    layers = tuple(
        LayerSpec(
            mlp=mlp_of.get(kind),
            rope=None,
            attends=kind == "full_attention",
            recurrent=mamba if kind == "linear_attention" else None,
        )
        for kind in kinds
    )
    norm = NormSpec(eps=config.number("rms_norm_eps", 1e-5), kind="wide_rms")
    return read_decoder(config, attention, layers, norm=norm)


def _kinds(config: Config) -> tuple[str, ...]:
    """Read what each layer is, by `layers_block_type`, or by one letter each."""
    pattern = config.text("hybrid_override_pattern", "")
    if pattern and "layer_types" not in config:
        named = [_KINDS.get(letter, letter) for letter in pattern]
        config = Config({**config.values, "layer_types": named}, config.path, config.prefix)
    count = len(config.texts("layer_types"))
    return read_kinds(config, ("linear_attention", "moe", "mlp", "full_attention"), count)


def _mlp(config: Config) -> MLPSpec | MoESpec:
    return MLPSpec(
        size=config.count("intermediate_size", 21504),
        activation="relu2",
        gated=False,
        bias=config.flag("mlp_bias"),
    )


def _moe(config: Config) -> MoESpec:
    config.refuse("mlp_bias", False, "Experts with biases are not in this version.")
    moe = read_moe(
        config,
        size=config.count("moe_intermediate_size", 7688),
        normalise=config.flag("norm_topk_prob", True),
        default_top_k=2,
        shared_size=config.count("moe_shared_expert_intermediate_size", 7688),
    )
    moe = replace(moe, activation="relu2", gated=False, shared_switch=False)
    return chosen_by_sigmoid(config, moe)


_NAMES = Names(
    model={"backbone.embeddings": "embedding", "backbone.norm_f": "final_norm", "lm_head": "lm_head"},
    layer={
        "norm": "attention_norm or mlp_norm",
        "mixer.q_proj": "query",
        "mixer.k_proj": "key",
        "mixer.v_proj": "value",
        "mixer.o_proj": "o",
        "mixer.in_proj": "mamba_in",
        "mixer.conv1d": "mamba_conv",
        "mixer.A_log": "mamba_decay",
        "mixer.dt_bias": "mamba_time_bias",
        "mixer.D": "mamba_skip",
        "mixer.norm": "mamba_scale",
        "mixer.out_proj": "mamba_o",
        "mixer.up_proj": "up",
        "mixer.down_proj": "down",
        "mixer.gate": "router",
        "mixer.gate.correction": "router_correction",
        "mixer.experts.{expert}.up_proj": "expert_up",
        "mixer.experts.{expert}.down_proj": "expert_down",
        "mixer.shared_experts.up_proj": "shared_up",
        "mixer.shared_experts.down_proj": "shared_down",
    },
    layer_prefix="backbone.layers.{layer}.",
    prefixes={"model.": "backbone."},
    endings={
        **{f".mixer.{name}": f".mixer.{name}.weight" for name in ("A_log", "dt_bias", "D")},
        ".mixer.gate.e_score_correction_bias": ".mixer.gate.correction.weight",
    },
    ignored_modules=("mtp.",),
)

ARCHITECTURE = Architecture("NemotronHForCausalLM", _spec, _NAMES)
