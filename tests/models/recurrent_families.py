"""Tiny configurations of families with recurrent layers."""

from __future__ import annotations

from typing import Any

from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from tests.models.family_sizes import EXPERTS, FOUR_HEADS, SHARED

DELTA_NET = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "initializer_range": 0.08,
    "pad_token_id": 0,
}
EVERY_OTHER = ["full_attention", "linear_attention"] * 2

RECURRENT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3_next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        # All experts compute each token. Which of fewer do in bfloat16 is a matter of chance, and states remember it.
        FOUR_HEADS | EXPERTS | SHARED | DELTA_NET | {"num_experts_per_tok": 6},
    ),
    "qwen3_next_other": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        FOUR_HEADS
        | EXPERTS
        | SHARED
        | DELTA_NET
        | {
            "layer_types": EVERY_OTHER,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 2,
            "norm_topk_prob": False,
            "mlp_only_layers": [1],
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    "qwen3_5": (Qwen3_5ForCausalLM, Qwen3_5TextConfig, FOUR_HEADS | DELTA_NET),
    "qwen3_5_moe": (
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeTextConfig,
        FOUR_HEADS | EXPERTS | SHARED | DELTA_NET | {"tie_word_embeddings": True},
    ),
}
"""Families with an architecture: model class, configuration class, options."""
