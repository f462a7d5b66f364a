"""Tiny configurations of families with latent attention (DeepSeek)."""

from __future__ import annotations

from typing import Any

from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
)

from tests.models.family_sizes import GLM, YARN

SIZES = GLM | {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
}
MSCALE_YARN = YARN | {"mscale": 0.9, "mscale_all_dim": 0.7}

LATENT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "deepseek_v2_lite": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config,
        SIZES | {"q_lora_rank": None, "rms_norm_eps": 1e-3, "rope_parameters": MSCALE_YARN},
    ),
    "deepseek_v2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config,
        SIZES
        | {
            "q_lora_rank": 40,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "attention_bias": True,
        },
    ),
    "deepseek_v3_grouped": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        SIZES
        | {
            "q_lora_rank": 40,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "rope_parameters": MSCALE_YARN,
        },
    ),
    "deepseek_v3_unpaired": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        SIZES
        | {
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
}
"""Families with an architecture: model class, configuration class, options."""
