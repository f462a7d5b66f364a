"""Tiny configurations of families with recurrent layers."""

from __future__ import annotations

from typing import Any

from transformers import (
    BambaConfig,
    BambaForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
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
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8, "pad_token_id": 0}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "pad_token_id": 0,
}
GRANITE = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "embedding_multiplier": 6.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "shared_intermediate_size": 40,
}
MULTIPLIERS = {
    "lm_head_multiplier": 0.6,
    "embedding_multiplier": 3.0,
    "mlp_multipliers": [0.7, 1.3],
    "key_multiplier": 0.6,
    "attention_out_multiplier": 0.8,
    "attention_in_multiplier": 1.2,
    "ssm_multipliers": [0.9, 1.1, 0.7, 1.2, 0.8],
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.6,
}
NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 24,
    "n_groups": 2,
    "chunk_size": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "rescale_prenorm_residual": False,
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
    "lfm2": (Lfm2ForCausalLM, Lfm2Config, FOUR_HEADS | CONVOLUTIONS),
    "lfm2_other": (
        Lfm2ForCausalLM,
        Lfm2Config,
        FOUR_HEADS
        | {"full_attn_idxs": [0], "conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False}
        | {"tie_word_embeddings": False, "pad_token_id": 0},
    ),
    "lfm2_moe": (
        Lfm2MoeForCausalLM,
        Lfm2MoeConfig,
        FOUR_HEADS | EXPERTS | CONVOLUTIONS | {"num_dense_layers": 1, "num_experts_per_tok": 6},
    ),
    "granite_hybrid": (
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig,
        FOUR_HEADS | MAMBA | GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 5},
    ),
    "granite_hybrid_dense": (
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig,
        FOUR_HEADS
        | MAMBA
        | GRANITE
        | {"num_local_experts": 0, "position_embedding_type": "rope", "mamba_proj_bias": True}
        | {"mamba_n_groups": 1, "mamba_d_conv": 3, "mamba_conv_bias": False, "attention_bias": True}
        | {"tie_word_embeddings": True},
    ),
    "bamba": (BambaForCausalLM, BambaConfig, FOUR_HEADS | MAMBA | {"attn_layer_indices": [1]}),
    "falcon_h1": (
        FalconH1ForCausalLM,
        FalconH1Config,
        FOUR_HEADS | MAMBA | MULTIPLIERS | {"mamba_d_ssm": 128},
    ),
    "falcon_h1_norm": (
        FalconH1ForCausalLM,
        FalconH1Config,
        FOUR_HEADS
        | MAMBA
        | {"mamba_d_ssm": None, "mamba_rms_norm": True, "mamba_proj_bias": True, "projectors_bias": True}
        | {"attention_bias": True, "mlp_bias": True},
    ),
    "falcon_h1_gate": (
        FalconH1ForCausalLM,
        FalconH1Config,
        FOUR_HEADS | MAMBA | {"mamba_d_ssm": 128, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "nemotron_h": (
        NemotronHForCausalLM,
        NemotronHConfig,
        FOUR_HEADS
        | NEMOTRON
        | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ),
    "nemotron_h_moe": (
        NemotronHForCausalLM,
        NemotronHConfig,
        FOUR_HEADS
        | NEMOTRON
        | {"layers_block_type": ["mlp", "full_attention", "linear_attention", "moe"], "use_bias": True}
        | {"num_experts_per_tok": 6, "routed_scaling_factor": 1.5},
    ),
}
"""Families with an architecture: model class, configuration class, options."""
