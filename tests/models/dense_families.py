"""Tiny configurations of every family whose layers are dense."""

from __future__ import annotations

from typing import Any

from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.models.family_sizes import (
    DYNAMIC,
    FOUR_HEADS,
    GEMMA,
    GPT2,
    LINEAR,
    LLAMA3,
    NEOX,
    SIX_HEADS,
    WINDOWS,
    YARN,
)

DENSE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, SIX_HEADS),
    "llama3_tied": (
        LlamaForCausalLM,
        LlamaConfig,
        FOUR_HEADS | {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    ),
    "llama_biased": (
        LlamaForCausalLM,
        LlamaConfig,
        FOUR_HEADS | {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR},
    ),
    "mistral": (
        MistralForCausalLM,
        MistralConfig,
        FOUR_HEADS | {"head_dim": 32, "sliding_window": None, "rope_parameters": DYNAMIC},
    ),
    "mistral_window": (MistralForCausalLM, MistralConfig, SIX_HEADS | {"sliding_window": 11}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, FOUR_HEADS | {"tie_word_embeddings": True}),
    "qwen2_yarn": (
        Qwen2ForCausalLM,
        Qwen2Config,
        FOUR_HEADS
        | {
            "rope_parameters": YARN,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 1,
        },
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, SIX_HEADS),
    "qwen3_window": (
        Qwen3ForCausalLM,
        Qwen3Config,
        SIX_HEADS
        | {
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": WINDOWS,
            "rope_parameters": YARN
            | {"attention_factor": 0.7, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
        },
    ),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        SIX_HEADS
        | GEMMA
        | {"sliding_window": 9, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    ),
    "gemma2_uncapped": (
        Gemma2ForCausalLM,
        Gemma2Config,
        FOUR_HEADS
        | GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        SIX_HEADS | GEMMA | {"sliding_window": 9, "layer_types": WINDOWS[::-1]},
    ),
    "gemma3_scaled": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        FOUR_HEADS
        | GEMMA
        | {
            "layer_types": WINDOWS,
            "sliding_window": 12,
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "phi3": (Phi3ForCausalLM, Phi3Config, FOUR_HEADS | {"pad_token_id": 0}),
    "phi3_partial": (
        Phi3ForCausalLM,
        Phi3Config,
        FOUR_HEADS
        | {
            "pad_token_id": 0,
            "sliding_window": 13,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config, FOUR_HEADS | {"pad_token_id": 0}),
    "olmo2_biased": (
        Olmo2ForCausalLM,
        Olmo2Config,
        FOUR_HEADS | {"pad_token_id": 0, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "olmo3": (
        Olmo3ForCausalLM,
        Olmo3Config,
        FOUR_HEADS
        | {
            "pad_token_id": 0,
            "sliding_window": 9,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "num_hidden_layers": 4,
        },
    ),
    "gemma": (GemmaForCausalLM, GemmaConfig, SIX_HEADS | {"hidden_act": "gelu"}),
    "gemma_biased": (
        GemmaForCausalLM,
        GemmaConfig,
        FOUR_HEADS | {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "granite": (
        GraniteForCausalLM,
        GraniteConfig,
        SIX_HEADS
        | {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "granite_biased": (
        GraniteForCausalLM,
        GraniteConfig,
        FOUR_HEADS
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "attention_multiplier": 0.2,
        },
    ),
    "smollm3": (
        SmolLM3ForCausalLM,
        SmolLM3Config,
        FOUR_HEADS
        | {"pad_token_id": 0, "use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [1, 0, 1]},
    ),
    "smollm3_biased": (
        SmolLM3ForCausalLM,
        SmolLM3Config,
        FOUR_HEADS
        | {
            "pad_token_id": 0,
            "attention_bias": True,
            "mlp_bias": True,
            "no_rope_layer_interval": 2,
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": (GPT2LMHeadModel, GPT2Config, GPT2),
    "gpt2_odd": (
        GPT2LMHeadModel,
        GPT2Config,
        GPT2 | {"n_embd": 60, "n_inner": 70, "tie_word_embeddings": False, "scale_attn_weights": False},
    ),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, NEOX),
    "gpt_neox_sequential": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        NEOX
        | {
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    "starcoder2": (Starcoder2ForCausalLM, Starcoder2Config, FOUR_HEADS | {"sliding_window": 10}),
    "starcoder2_unbiased": (
        Starcoder2ForCausalLM,
        Starcoder2Config,
        FOUR_HEADS | {"use_bias": False, "tie_word_embeddings": False},
    ),
}
