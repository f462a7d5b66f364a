"""Tiny configurations by family: those with an architecture of ours, and those that run on transformers' code."""

from __future__ import annotations

from typing import Any

from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    VaultGemmaConfig,
    VaultGemmaForCausalLM,
)

from tests.models.dense_families import DENSE
from tests.models.family_sizes import DYNAMIC, EXPERTS, FOUR_HEADS, GEMMA, GPT2, LONG, SIX_HEADS, WINDOWS
from tests.models.latent_families import LATENT
from tests.models.recurrent_families import RECURRENT
from tests.models.routed_families import ROUTED

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = DENSE | ROUTED | LATENT | RECURRENT
"""Families for which there is an architecture: model class, configuration class, options."""

FOREIGN: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "olmoe": (OlmoeForCausalLM, OlmoeConfig, FOUR_HEADS | EXPERTS | {"pad_token_id": 0}),
    "granite_swa": (
        GraniteSWAForCausalLM,
        GraniteSWAConfig,
        FOUR_HEADS | {"sliding_window": 9, "layer_types": WINDOWS, "pad_token_id": 0},
    ),
    "vaultgemma": (
        VaultGemmaForCausalLM,
        VaultGemmaConfig,
        SIX_HEADS
        | GEMMA
        | {"sliding_window": 9, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    ),
    "cohere2": (
        Cohere2ForCausalLM,
        Cohere2Config,
        FOUR_HEADS | {"sliding_window": 9, "layer_types": WINDOWS, "pad_token_id": 0, "logit_scale": 0.5},
    ),
    "gpt_bigcode": (
        GPTBigCodeForCausalLM,
        GPTBigCodeConfig,
        GPT2,
    ),
    "opt": (
        OPTForCausalLM,
        OPTConfig,
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "ffn_dim": 80,
            "word_embed_proj_dim": 64,
            "pad_token_id": 0,
        },
    ),
    "phimoe": (
        PhimoeForCausalLM,
        PhimoeConfig,
        FOUR_HEADS | {"num_local_experts": 4, "sliding_window": None, "pad_token_id": 0},
    ),
    "gemma4": (
        Gemma4ForCausalLM,
        Gemma4TextConfig,
        FOUR_HEADS
        | {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "global_head_dim": 16,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 331,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "final_logit_softcapping": 5.0,
        },
    ),
    "glm4": (
        Glm4ForCausalLM,
        Glm4Config,
        FOUR_HEADS | {"head_dim": 16, "pad_token_id": 0, "rope_parameters": DYNAMIC},
    ),
    "phi": (PhiForCausalLM, PhiConfig, {"hidden_size": 64, "num_attention_heads": 4}),
}
"""Families without an architecture of ours: models that run on transformers' own code."""
SWITCHING: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "phi3_long": (
        Phi3ForCausalLM,
        Phi3Config,
        FOUR_HEADS | {"pad_token_id": 0, "rope_parameters": LONG, "original_max_position_embeddings": 48},
    ),
}
"""Families whose rotation depends on length: transformers switches by the text, Pageant by `max_model_len`."""
