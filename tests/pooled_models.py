"""Checkpoints of models that embed and classify, with random weights, as transformers and sentence-transformers save
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

VOCABULARY = 160
WORDS = [f"w{number}" for number in range(VOCABULARY - 40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "yes"]

ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
DECODER = {
    **ENCODER,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "tie_word_embeddings": True,
}
ROBERTA = {**ENCODER, "pad_token_id": 1, "type_vocab_size": 1}
MODERN = {
    **ENCODER,
    "local_attention": 8,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "global_attn_every_n_layers": 2,
}

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", ENCODER),
    "roberta": ("RobertaModel", "RobertaConfig", ROBERTA),
    "xlm_roberta": ("XLMRobertaModel", "XLMRobertaConfig", ROBERTA),
    "modernbert": ("ModernBertModel", "ModernBertConfig", MODERN),
    "modernbert_biased": (
        "ModernBertModel",
        "ModernBertConfig",
        {**MODERN, "attention_bias": True, "mlp_bias": True, "norm_bias": True},
    ),
    "bert_masked": ("BertForMaskedLM", "BertConfig", ENCODER),
    "qwen3": ("Qwen3Model", "Qwen3Config", DECODER),
    "qwen3_causal": ("Qwen3ForCausalLM", "Qwen3Config", DECODER),
    "llama_causal": ("LlamaForCausalLM", "LlamaConfig", {**DECODER, "tie_word_embeddings": False}),
    "mistral": ("MistralModel", "MistralConfig", {**DECODER, "sliding_window": 9}),
    "bert_pairs": ("BertForSequenceClassification", "BertConfig", {**ENCODER, "num_labels": 1}),
    "bert_labels": ("BertForSequenceClassification", "BertConfig", {**ENCODER, "num_labels": 3}),
    "roberta_pairs": ("RobertaForSequenceClassification", "RobertaConfig", {**ROBERTA, "num_labels": 1}),
    "xlm_roberta_labels": (
        "XLMRobertaForSequenceClassification",
        "XLMRobertaConfig",
        {**ROBERTA, "num_labels": 4},
    ),
    "modernbert_labels": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**MODERN, "num_labels": 3, "classifier_pooling": "mean"},
    ),
    "bert_tokens": ("BertForTokenClassification", "BertConfig", {**ENCODER, "num_labels": 5}),
    "qwen3_labels": ("Qwen3ForSequenceClassification", "Qwen3Config", {**DECODER, "num_labels": 2}),
    "qwen3_pairs": ("Qwen3ForSequenceClassification", "Qwen3Config", {**DECODER, "num_labels": 1}),
}
"""Class and configuration of transformers, by names of ours."""


def save_model(folder: Path, kind: str, *, seed: int = 0, pooling: str | None = None, **options: Any) -> Any:
    """Save a model of a kind with its tokenizer. Returns the model, in float32.

    Args:
        pooling: how sentence-transformers pools it; None is a folder of transformers alone.
        options: see `save_modules`.
    """
    name, config, values = KINDS[kind]
    torch.manual_seed(seed)
    model = getattr(transformers, name)(getattr(transformers, config)(**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    save_tokenizer(folder, roberta="oberta" in kind, decoder="token_type" if "qwen" in kind else None)
    if pooling is not None:
        save_modules(folder, pooling, **options)
    return model


def save_modules(
    folder: Path,
    pooling: str,
    *,
    dense: int | None = None,
    normalises: bool = True,
    by_name: bool = False,
    prompts: dict[str, str] | None = None,
    max_length: int | None = None,
) -> None:
    """Add sentence-transformers' files to a folder.

    Args:
        pooling: "cls", "mean" or "lasttoken".
        dense: the width of a dense layer behind pooling.
        by_name: write 1_Pooling as sentence-transformers does since 5.4.
    """
    flag = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(pooling, pooling)
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    flags = {
        f"pooling_mode_{one}": one == flag for one in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    content: dict[str, Any] = {"word_embedding_dimension": size, **flags}
    if by_name:
        content = {"embedding_dimension": size, "pooling_mode": pooling}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(folder / "1_Pooling/config.json", content)
    if dense is not None:
        modules.append(("2_Dense", "Dense"))
        activation = "torch.nn.modules.activation.Tanh"
        _write(
            folder / "2_Dense/config.json",
            {"in_features": size, "out_features": dense, "bias": True, "activation_function": activation},
        )
        weights = {"linear.weight": 0.3 * torch.randn(dense, size), "linear.bias": 0.1 * torch.randn(dense)}
        save_file(weights, folder / "2_Dense/model.safetensors")
    if normalises:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (folder / modules[-1][0]).mkdir()
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)
    _write(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})


def change_config(folder: Path, **values: Any) -> None:
    """Change keys of a folder's config.json; those that are None are left out."""
    config = json.loads((folder / "config.json").read_text()) | values
    _write(folder / "config.json", {key: value for key, value in config.items() if value is not None})


def save_tokenizer(folder: Path, *, roberta: bool = False, decoder: str | None = None) -> None:
    """Save a tokenizer of words, which puts texts between [CLS] and [SEP]; one of decoders ends them with [SEP]."""
    tokens = [*SPECIAL, *WORDS]
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, "[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(SPECIAL[:5])
    single, pair = "[CLS] $A [SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    if roberta:
        pair = "[CLS] $A [SEP] [SEP] $B [SEP]"
    if decoder is not None:
        single, pair = "$A [SEP]", "$A $B [SEP]"
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 128,
            **{f"{name.strip('[]').lower()}_token": name for name in SPECIAL[:5]},
            "eos_token": "[SEP]",
        },
    )


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
