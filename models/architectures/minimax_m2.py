"""MiniMax-M2: a part of each head turned, norms of all queries and keys, and experts that sigmoids choose."""

from __future__ import annotations

from pageant.models.architectures.common import ATTENTION, MODEL, Architecture
from pageant.models.architectures.moe import chosen_by_sigmoid, read_moe
from pageant.models.architectures.reading import read_attention, read_decoder, repeat
from pageant.models.architectures.rope import read_rope
from pageant.models.config import Config
from pageant.models.names import Names
from pageant.models.spec import DecoderSpec, LayerSpec

__all__ = ["ARCHITECTURE"]


def _spec(config: Config) -> DecoderSpec:
    config = config.using({"num_experts": "num_local_experts"})
    for key, only in (("use_routing_bias", True), ("use_qk_norm", True), ("qk_norm_type", "per_layer")):
        config.refuse(key, only, "No other MiniMax-M2 is implemented.")
    attention = read_attention(config, qk_norm="projection")
    moe = read_moe(config, size=config.count("intermediate_size"), normalise=True, default_top_k=8)
    turned = config.count("rotary_dim", attention.head_dim)
    if turned > attention.head_dim:
        raise config.wrong("rotary_dim", turned, f"no more than the head's {attention.head_dim}")
    rope = read_rope(
        config,
        attention.head_dim,
        default_theta=5_000_000.0,
        default_share=turned / attention.head_dim,
    )
    layer = LayerSpec(mlp=chosen_by_sigmoid(config, moe), rope=rope)
    return read_decoder(config, attention, repeat(layer, config))


_NAMES = Names(
    model=MODEL,
    layer=ATTENTION
    | {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "block_sparse_moe.gate": "router",
        "block_sparse_moe.correction": "router_correction",
        "block_sparse_moe.experts.{expert}.w1": "expert_gate",
        "block_sparse_moe.experts.{expert}.w3": "expert_up",
        "block_sparse_moe.experts.{expert}.w2": "expert_down",
    },
    endings={".block_sparse_moe.e_score_correction_bias": ".block_sparse_moe.correction.weight"},
    ignores_later_layers=True,
)

ARCHITECTURE = Architecture("MiniMaxM2ForCausalLM", _spec, _NAMES)
