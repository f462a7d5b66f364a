"""Tiny random-weight checkpoints with a tokenizer, and what transformers says that they generate."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

import pageant

WINDOW = 24
SOME_WINDOWS = {
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
}
LATENTS = {
    **{
        "kv_lora_rank": 24,
        "q_lora_rank": 40,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 32,
    },
    **{
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
    },
    **{"n_group": 4, "topk_group": 2, "num_key_value_heads": 4, "intermediate_size": 128},
}
RECURRENT = {
    **{"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "initializer_range": 0.2},
    "max_position_embeddings": 2048,
}
MAMBA = {
    **{"num_hidden_layers": 3, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 1},
    **{"mamba_d_state": 8, "mamba_n_groups": 2, "max_position_embeddings": 2048},
}
NEMOTRON = {
    **{"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "head_dim": 16},
    **{"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]},
    **{"rescale_prenorm_residual": False, "max_position_embeddings": 2048},
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "deepseek_v3": (DeepseekV3ForCausalLM, partial(DeepseekV3Config, **LATENTS)),
    "gemma3": (
        Gemma3ForCausalLM,
        partial(Gemma3TextConfig, head_dim=16, query_pre_attn_scalar=16, **SOME_WINDOWS),
    ),
    "cohere2, which transformers runs": (Cohere2ForCausalLM, partial(Cohere2Config, **SOME_WINDOWS)),
    "glm4_moe": (
        Glm4MoeForCausalLM,
        partial(
            Glm4MoeConfig,
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
            use_qk_norm=True,
        ),
    ),
    "falcon_h1": (FalconH1ForCausalLM, partial(FalconH1Config, **MAMBA, mamba_d_ssm=64)),
    "granite_hybrid": (
        GraniteMoeHybridForCausalLM,
        partial(
            GraniteMoeHybridConfig,
            **MAMBA,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_local_experts=0,
            shared_intermediate_size=96,
            attention_multiplier=0.25,
        ),
    ),
    "lfm2": (
        Lfm2ForCausalLM,
        partial(Lfm2Config, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]),
    ),
    "nemotron_h": (NemotronHForCausalLM, partial(NemotronHConfig, **NEMOTRON)),
    "llama": (LlamaForCausalLM, LlamaConfig),
    "mistral": (MistralForCausalLM, MistralConfig),
    "mistral with a window": (MistralForCausalLM, partial(MistralConfig, sliding_window=WINDOW)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    "qwen3_next": (
        Qwen3NextForCausalLM,
        partial(
            Qwen3NextConfig,
            **RECURRENT,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
    ),
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
MAX_MODEL_LEN = 256


@dataclass(frozen=True)
class Checkpoint:
    """A saved model, and the same one as transformers has it."""

    path: Path
    model: PreTrainedModel
    vocab_size: int

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """transformers' own greedy continuation, in float32."""
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return output[0, len(prompt) :].tolist()


def _tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    vocab = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": specials[1:]})
    fast.chat_template = CHAT_TEMPLATE
    return fast


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Checkpoints by family, each made once."""
    made: dict[str, Checkpoint] = {}

    def make(family: str) -> Checkpoint:
        if family not in made:
            made[family] = _save(family, tmp_path_factory.mktemp(family.replace(" ", "-")))
        return made[family]

    return make


def _save(family: str, path: Path) -> Checkpoint:
    model_class, config_class = FAMILIES[family]
    tokenizer = _tokenizer()
    torch.manual_seed(7)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_MODEL_LEN,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "bos_token_id": None,
        "initializer_range": 0.3,  # peaked logits: no ties, and varied continuations
    }
    config = config_class(**(sizes | getattr(config_class, "keywords", {})))
    model = model_class(config).to(torch.float32).eval()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    model.generation_config.eos_token_id = None  # the oracle goes on, as with ignore_eos
    return Checkpoint(path, model, len(tokenizer))


@pytest.fixture(scope="session")
def checkpoint(make_checkpoint: Callable[[str], Checkpoint]) -> Checkpoint:
    """The one that most tests serve."""
    return make_checkpoint("llama")


@pytest.fixture(scope="session")
def mixed_prompts(checkpoint: Checkpoint) -> list[list[int]]:
    """20 prompts of 1 to 120 tokens, several of which begin alike."""
    rng = random.Random(3)
    shared = [rng.randrange(4, checkpoint.vocab_size) for _ in range(64)]
    prompts = []
    for index in range(20):
        own = [rng.randrange(4, checkpoint.vocab_size) for _ in range(rng.choice([1, 5, 16, 31, 56]))]
        prompts.append(shared[: rng.choice([32, 48, 64])] + own if index % 3 == 0 else own)
    return prompts


@pytest.fixture(scope="module")
def llm(checkpoint: Checkpoint) -> Iterator[pageant.LLM]:
    """A plain engine in this process."""
    with pageant.LLM(checkpoint.path, placement="one", progress=False, threads=1, num_blocks=256) as llm:
        yield llm


GREEDY = pageant.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
