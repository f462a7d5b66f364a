"""The tensors of GGUF files by their names, and which module each of them is here. Knows no torch."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.names import Names

__all__ = ["FUSED", "FUSED_GATE", "GPT_OSS", "NAMES", "PAIRED"]

_MODEL = {
    "token_embd": "embedding",
    "position_embd": "position_embedding",
    "output_norm": "final_norm",
    "output": "lm_head",
}
_NORMS = {
    "attn_norm": "attention_norm",
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "mlp_norm",
    "post_ffw_norm": "post_mlp_norm",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
}
_SEPARATE = {"attn_q": "query", "attn_k": "key", "attn_v": "value", "attn_output": "o"}
_ALL_IN_ONE = {"attn_qkv": "qkv", "attn_output": "o"}
_MLP = {"ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}
_EXPERTS = {
    "ffn_gate_inp": "router",
    "ffn_gate_exps.{expert}": "expert_gate",
    "ffn_up_exps.{expert}": "expert_up",
    "ffn_down_exps.{expert}": "expert_down",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "shared_switch",
}

NAMES = Names(
    model=_MODEL,
    layer=_NORMS | _SEPARATE | _MLP | _EXPERTS,
    layer_prefix="blk.{layer}.",
    ignored=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
)
"""Most families. Weights of Gemma's norms have one added already, and no matrix is transposed."""
PAIRED = replace(NAMES, rotates_pairs=True)
"""Families whose heads llama.cpp turns in pairs of neighbours: rows of queries and keys are sorted for that."""
FUSED = replace(NAMES, layer=_NORMS | _ALL_IN_ONE | _MLP)
"""Families whose queries, keys and values are one tensor, in this order."""
GPT_OSS = replace(
    NAMES,
    layer=_SEPARATE
    | _EXPERTS
    | {"attn_norm": "attention_norm", "post_attention_norm": "mlp_norm", "attn_sinks": "sinks"},
)
"""gpt-oss, whose norm before the MLP is called one after attention."""
FUSED_GATE = replace(NAMES, layer=_NORMS | _ALL_IN_ONE | {"ffn_up": "gate_up", "ffn_down": "down"})
"""Families whose gate and up are one tensor besides."""
