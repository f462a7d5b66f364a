"""GLM-4.5 and 4.6: half of each head turned, dense layers first, then experts that sigmoids choose, and shared ones."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.common import LLAMA, Architecture
from pageant.models.architectures.moe import chosen_by_sigmoid, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder, read_mlp
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "n_routed_experts"})
    attention = read_attention(
        config,
        qkv_bias=config.flag("attention_bias"),
        qk_norm="head" if config.flag("use_qk_norm") else None,
    )
    size = config.count("moe_intermediate_size")
    shared = config.count("n_shared_experts", 1, minimum=0)
    moe = read_moe(
        config,
        size=size,
        normalise=config.flag("norm_topk_prob", True),
        default_top_k=8,
        shared_size=size * shared or None,
    )
    moe = replace(chosen_by_sigmoid(config, moe), shared_switch=False)
    num_dense = config.count("first_k_dense_replace", 1, minimum=0)
    dense = read_mlp(config)
    rope = read_rope(config, attention.head_dim, default_share=0.5)
    layers = tuple(
        LayerSpec(mlp=dense if number < num_dense else moe, rope=rope)
        for number in range(config.count("num_hidden_layers"))
    )
    return read_decoder(config, attention, layers)


_NAMES = replace(
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

ARCHITECTURE = Architecture("Glm4MoeForCausalLM", _spec, _NAMES)
