"""One family of `tests/models/families.py` for every architecture whose weights can be quantised."""

from __future__ import annotations

ONE_OF_EACH = (
    *("llama_biased", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe_window", "qwen3_moe_sparse"),
    *("gemma", "gemma2", "gemma3", "phi3", "olmo2", "olmo3", "granite", "smollm3", "gpt2_odd"),
    *("gpt_neox", "starcoder2", "glm4_moe", "minimax_m2", "deepseek_v2", "deepseek_v3_grouped"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe"),
    *("lfm2", "lfm2_moe", "bamba", "falcon_h1", "nemotron_h"),
)
ROUTED_AT_RANDOM = ("glm4_moe", "minimax_m2", "deepseek_v2", "deepseek_v3_grouped")
"""Families whose routers, of random weights, send some tokens to other experts when weights are rounded."""
RECURRENT_AT_RANDOM = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "lfm2_moe", "nemotron_h")
"""Families whose states, of random weights, keep and amplify what rounding changes in a token for all that follow."""
REFUSED = frozenset({"GptOssForCausalLM", "GraniteMoeHybridForCausalLM"})
"""Architectures whose experts are saved in stacks, which cannot be quantised here."""
