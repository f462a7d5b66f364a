"""Checkpoint of the training: weights in bfloat16, configurations, and the model card."""

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from pageant.scripts.demo_model.tokenizer import (
    CONTEXT_LENGTH,
    END_OF_TEXT_ID,
    END_OF_TURN_ID,
    VOCABULARY_SIZE,
)

SETTINGS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT_LENGTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "use_cache": True,
    "bos_token_id": None,
    "eos_token_id": END_OF_TURN_ID,
    "pad_token_id": END_OF_TEXT_ID,
    "torch_dtype": "bfloat16",
}

_CARD = """\
---
license: apache-2.0
language: en
---

# Pageant demo model

A Llama of {millions:.1f} million parameters that ships with Pageant, so that the engine can be tried and
tested without a download. It answers short questions about Python, in the words of Python's own
documentation. It knows nothing else, and it is often wrong about names that it saw rarely: a
demonstration, not a reference.

- Architecture: LlamaForCausalLM, {num_hidden_layers} layers of width {hidden_size},
  {num_attention_heads} heads of {head_dim}, {num_key_value_heads} key/value heads, tied embeddings, bfloat16
- Vocabulary: byte-level BPE of {vocab_size} tokens, trained on the same text
- Context: positions up to {max_position_embeddings}; trained on rows of {row_tokens} tokens
- Text: `pydoc_data.topics` and the standard library's docstrings, of CPython {python}
- Documentation: {document_tokens:,} tokens of plain text
- Conversations: {epochs} epochs of questions made from templates, answered by excerpts of that text
- Training: {steps:,} steps, {tokens:,} tokens, {seconds:,.0f} seconds on {threads} CPU threads
- Final loss: {loss:.3f} nats a token, mean of the last 100 steps (mostly answers)
- Topic check: {on_topic} of {asked} questions, worded as in no training question, answered on topic (greedy)

Roles are `system`, `user` and `assistant`, in the ChatML form; `<|im_end|>` ends a turn and an answer.

Beside it lie what drafts for it: a smaller model of two of its layers (`draft`), an EAGLE-3 head (`eagle`) and Medusa
heads (`medusa`), trained from it by `python -m pageant.scripts.demo_model.drafters`, in five minutes on four cores.

To train it again (under an hour on two CPU cores; another version of Python has another text):

    python -m pageant.scripts.demo_model.train

To repeat the topic check:

    python -m pageant.scripts.demo_model.check

The code and the weights are under the Apache License 2.0. The text that it was trained on, and may repeat,
is CPython's documentation, copyright Python Software Foundation, under the PSF License Version 2.
"""


@dataclass(frozen=True)
class Outcome:
    """The figures of one training run, for the model card."""

    document_tokens: int
    steps: int
    tokens: int
    row_tokens: int
    epochs: int
    seconds: float
    threads: int
    loss: float
    on_topic: int
    asked: int


def new_model() -> LlamaForCausalLM:
    """A freshly initialised model in float32."""
    return LlamaForCausalLM(LlamaConfig(**{**SETTINGS, "torch_dtype": "float32"}))


def save_checkpoint(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes the weights and both configurations. The tied output matrix is not stored a second time."""
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in sorted(model.state_dict().items())
        if name != "lm_head.weight"
    }
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors leaves it to its owner alone
    _write_json(folder / "config.json", SETTINGS)
    generation = {
        "do_sample": False,
        "eos_token_id": [END_OF_TURN_ID, END_OF_TEXT_ID],
        "pad_token_id": END_OF_TEXT_ID,
    }
    _write_json(folder / "generation_config.json", generation)


def save_card(folder: Path, outcome: Outcome, parameters: int) -> None:
    """Writes the model card from the figures of the run."""
    figures = asdict(outcome) | {name: str(value) for name, value in SETTINGS.items()}
    card = _CARD.format_map(figures | {"millions": parameters / 1e6, "python": platform.python_version()})
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
