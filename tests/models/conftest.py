"""Tiny random models saved by transformers, and a miniature executor that runs ours on them in pages."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
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
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
    VaultGemmaConfig,
    VaultGemmaForCausalLM,
)

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder, Embedded, Wanted
from pageant.models.loading import load_decoder

COMMON = {
    "vocab_size": 331,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": [2, 5],
}
NORM = re.compile(r"norm|\.ln_")
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

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
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
    "starcoder2": (Starcoder2ForCausalLM, Starcoder2Config, FOUR_HEADS | {"sliding_window": 10}),
    "starcoder2_unbiased": (
        Starcoder2ForCausalLM,
        Starcoder2Config,
        FOUR_HEADS | {"use_bias": False, "tie_word_embeddings": False},
    ),
}


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
"""Models without a file of ours, which run on transformers' own code."""

SWITCHING: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "phi3_long": (
        Phi3ForCausalLM,
        Phi3Config,
        FOUR_HEADS | {"pad_token_id": 0, "rope_parameters": LONG, "original_max_position_embeddings": 48},
    ),
}
"""Models whose rotation transformers switches by the length of a text, and we by the longest served."""


@dataclass(frozen=True)
class Family:
    """A model as transformers has it, and where it is saved."""

    path: Path
    model: PreTrainedModel

    def load(self, dtype: str = "auto", backend: str = "reference", max_model_len: int | None = None) -> Any:
        loaded = kernels.load(backend)
        return load_decoder(Checkpoint(self.path), dtype, "cpu", kernels=loaded, max_model_len=max_model_len)


class Pages:
    """A cache of scattered blocks, and the steps of sequences through it."""

    def __init__(self, decoder: Decoder, block_size: int = 4, num_blocks: int = 96) -> None:
        self.decoder = decoder
        self.block_size = block_size
        self.caches = decoder.allocate_kv_caches(num_blocks, block_size)
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5))
        self._free = order.tolist()

    @torch.inference_mode()
    def step(self, tokens: dict[str, list[int]]) -> dict[str, Tensor]:
        """Run each sequence's next tokens together; return each one's logits, [tokens, vocab_size]."""
        hidden = self._forward(tokens)
        lengths = [len(new) for new in tokens.values()]
        logits = torch.split_with_sizes(self.decoder.logits(hidden), lengths)
        return dict(zip(tokens, logits, strict=True))

    @torch.inference_mode()
    def last_of(self, names: list[str], tokens: dict[str, list[int]]) -> dict[str, Tensor]:
        """Run each sequence's next tokens together; return the logits of the last of some, [1, vocab_size] each."""
        hidden = self._forward(tokens, names)
        if not names:
            assert hidden.shape[0] == 0
            return {}
        return dict(zip(names, self.decoder.logits(hidden).split(1), strict=True))

    @torch.inference_mode()
    def step_of_rows(self, name: str, rows: Tensor) -> Tensor:
        """Run embeddings [tokens, hidden_size] in place of a sequence's next tokens; return their logits."""
        embedded = Embedded(torch.arange(len(rows)), rows.to(self.decoder.dtype))
        return self.decoder.logits(self._forward({name: [0] * len(rows)}, embedded=embedded))

    def _forward(
        self,
        tokens: dict[str, list[int]],
        last_of: list[str] | None = None,
        embedded: Embedded | None = None,
    ) -> Tensor:
        positions = {name: self._advance(name, len(new)) for name, new in tokens.items()}
        flat, batch = torch.tensor(list(chain(*positions.values()))), self._batch(positions)
        wanted = None
        if last_of is not None:
            sequences = torch.tensor([list(tokens).index(name) for name in last_of], dtype=torch.int64)
            wanted = Wanted.of(batch.query_starts[1:][sequences].long() - 1, sequences, batch)
        token_ids = torch.tensor(list(chain(*tokens.values())))
        return self.decoder.forward(token_ids, flat, batch, self.caches, wanted, embedded)

    def _advance(self, name: str, count: int) -> list[int]:
        start = self.computed.get(name, 0)
        self.computed[name] = start + count
        table = self.tables.setdefault(name, [])
        while len(table) * self.block_size < start + count:
            table.append(self._free.pop())
        return list(range(start, start + count))

    def _batch(self, positions: dict[str, list[int]]) -> AttentionBatch:
        lengths = [len(places) for places in positions.values()]
        contexts = [self.computed[name] for name in positions]
        width = max(len(self.tables[name]) for name in positions) + 2
        tables = [self.tables[name] + [-1] * (width - len(self.tables[name])) for name in positions]
        slots = [self._slot(name, place) for name, places in positions.items() for place in places]
        return AttentionBatch(
            query_starts=torch.tensor([0, *lengths]).cumsum(0).int(),
            context_lengths=torch.tensor(contexts).int(),
            block_tables=torch.tensor(tables).int(),
            slots=torch.tensor(slots),
            positions=torch.tensor(list(chain(*positions.values()))),
            max_query_length=max(lengths),
            max_context_length=max(contexts),
        )

    def _slot(self, name: str, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return self.tables[name][block] * self.block_size + offset


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Returns a family by name, made and saved once a session."""
    made: dict[str, Family] = {}

    def make(name: str) -> Family:
        if name not in made:
            made[name] = _make(name, tmp_path_factory.mktemp(name))
        return made[name]

    return make


@pytest.fixture(params=FAMILIES)
def any_family(request: pytest.FixtureRequest, family: Callable[[str], Family]) -> Family:
    """Each family in turn for which there is an architecture."""
    return family(request.param)


@pytest.fixture(params=FAMILIES | FOREIGN)
def any_model(request: pytest.FixtureRequest, family: Callable[[str], Family]) -> Family:
    """Each family in turn."""
    return family(request.param)


@pytest.fixture
def tested_architectures() -> set[str]:
    return {model_class.__name__ for model_class, _, _ in FAMILIES.values()}


@pytest.fixture
def pages() -> type[Pages]:
    return Pages


def _make(name: str, path: Path) -> Family:
    model_class, config_class, options = (FAMILIES | FOREIGN | SWITCHING)[name]
    torch.manual_seed(len(name))
    config = config_class(**copy.deepcopy(COMMON | options))  # some write into what they are given
    model = model_class(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if NORM.search(parameter_name) or parameter_name.endswith("bias"):  # they are ones and zeros
            is_weight = parameter_name.endswith("weight")
            parameter.data.normal_(mean=float(is_weight and "gemma" not in name), std=0.2)
        if parameter_name.endswith("gate_up_proj_bias"):
            parameter.data.mul_(25)  # so that some gates are clamped
        if parameter_name.endswith("sinks"):
            parameter.data.normal_(std=2.0)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.2)
    model.save_pretrained(path)
    return Family(path, model)
