"""Sizes and rotations that the configurations of tiny models share."""

from __future__ import annotations

COMMON = {
    "vocab_size": 331,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": [2, 5],
}
SIX_HEADS = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
FOUR_HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 2.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0],
}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
WINDOWS = ["full_attention", "sliding_attention", "sliding_attention"]
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
SHARED = {"shared_expert_intermediate_size": 40}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24}
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 512}
NEOX = {"hidden_size": 64, "num_attention_heads": 4}
GLM = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "pad_token_id": 0}
MINIMAX = {"num_local_experts": 6, "num_experts_per_tok": 3, "pad_token_id": 0}
OSS = {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 9, "pad_token_id": 0}
