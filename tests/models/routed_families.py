"""Tiny configurations of every family with routed experts."""

from __future__ import annotations

from typing import Any

from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.models.family_sizes import (
    DYNAMIC,
    EXPERTS,
    FOUR_HEADS,
    GLM,
    MINIMAX,
    OSS,
    SHARED,
    SIX_HEADS,
    WINDOWS,
    YARN,
)

ROUTED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mixtral": (
        MixtralForCausalLM,
        MixtralConfig,
        FOUR_HEADS | {"num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "mixtral_window": (
        MixtralForCausalLM,
        MixtralConfig,
        SIX_HEADS | {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 8},
    ),
    "qwen2_moe": (Qwen2MoeForCausalLM, Qwen2MoeConfig, FOUR_HEADS | EXPERTS | SHARED),
    "qwen2_moe_window": (
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig,
        FOUR_HEADS
        | EXPERTS
        | SHARED
        | {"mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": 7, "norm_topk_prob": True},
    ),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, SIX_HEADS | EXPERTS | {"norm_topk_prob": True}),
    "qwen3_moe_sparse": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        SIX_HEADS | EXPERTS | {"decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 10},
    ),
    "gpt_oss": (
        GptOssForCausalLM,
        GptOssConfig,
        SIX_HEADS | OSS | {"rope_parameters": YARN | {"truncate": False}},
    ),
    "glm4_moe": (
        Glm4MoeForCausalLM,
        Glm4MoeConfig,
        SIX_HEADS
        | GLM
        | {
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "attention_bias": True,
            "n_shared_experts": 2,
        },
    ),
    "glm4_moe_ungrouped": (
        Glm4MoeForCausalLM,
        Glm4MoeConfig,
        FOUR_HEADS
        | GLM
        | {"head_dim": 16, "use_qk_norm": True, "norm_topk_prob": False, "first_k_dense_replace": 0},
    ),
    "minimax_m2": (
        MiniMaxM2ForCausalLM,
        MiniMaxM2Config,
        SIX_HEADS | MINIMAX | {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
    ),
    "minimax_m2_tied": (
        MiniMaxM2ForCausalLM,
        MiniMaxM2Config,
        FOUR_HEADS | MINIMAX | {"head_dim": 16, "tie_word_embeddings": True},
    ),
    "gpt_oss_unbiased": (
        GptOssForCausalLM,
        GptOssConfig,
        FOUR_HEADS
        | OSS
        | {
            "head_dim": 32,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "layer_types": WINDOWS,
            "rope_parameters": DYNAMIC,
        },
    ),
}
