"""Models without a head, in pages, against transformers' hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.models import Checkpoint
from pageant.models.architectures import ENCODERS
from pageant.models.decoder import Wanted
from pageant.models.loading import load_decoder
from tests.pooled_models import KINDS, VOCABULARY, save_model

LENGTHS = (1, 37, 5, 128, 64)
"""Tokens of texts. RoBERTa takes no more: two of its 130 positions are for padding."""
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    root = tmp_path_factory.mktemp("encoders")
    names = (
        "bert",
        "roberta",
        "xlm_roberta",
        "modernbert",
        "modernbert_biased",
        "bert_masked",
        "qwen3",
        "mistral",
    )
    return {
        name: (root / name, save_model(root / name, name, pooling="mean", normalises=False)) for name in names
    }


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(7, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def step(tokens: list[Tensor]) -> tuple[Tensor, Tensor, AttentionBatch]:
    """Whole texts in one step, each in blocks of its own."""
    counts = torch.tensor([len(text) for text in tokens])
    most = -(-int(counts.max()) // BLOCK_SIZE)
    tables = torch.randperm(len(tokens) * most, generator=torch.Generator().manual_seed(1)).view(-1, most)
    positions = [torch.arange(len(text)) for text in tokens]
    slots = [
        table[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        for table, places in zip(tables, positions, strict=True)
    ]
    flat = torch.cat(positions)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    batch = AttentionBatch(
        query_starts=starts.int(),
        context_lengths=counts.int(),
        block_tables=tables.int().contiguous(),
        slots=torch.cat(slots),
        positions=flat,
        max_query_length=int(counts.max()),
        max_context_length=int(counts.max()),
    )
    return torch.cat(tokens), flat, batch


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    "name",
    ["bert", "roberta", "xlm_roberta", "modernbert", "modernbert_biased", "bert_masked", "qwen3", "mistral"],
)
@torch.inference_mode()
def test_hidden_states_are_those_of_transformers(
    models: dict[str, tuple[Path, Any]], name: str, backend: str
) -> None:
    path, model = models[name]
    checkpoint = Checkpoint(path)
    checkpoint.check()
    decoder = load_decoder(checkpoint, "float32", kernels=kernels.load(backend))
    assert decoder.spec.max_model_len == 128 if "roberta" in name else decoder.spec.max_model_len >= 128
    body = model.base_model
    types = [torch.arange(len(text)) // 20 % 2 for text in texts()]
    given = decoder.spec.num_token_types > 1
    token_ids, positions, batch = step(texts())
    caches = decoder.allocate_kv_caches(len(LENGTHS) * 8, BLOCK_SIZE)
    found = decoder.forward(
        token_ids, positions, batch, caches, token_types=torch.cat(types) if given else None
    ).split(LENGTHS)
    for text, kinds, hidden in zip(texts(), types, found, strict=True):
        extra = {"token_type_ids": kinds[None]} if given else {}
        expected = body(input_ids=text[None], **extra).last_hidden_state[0]
        torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_the_last_layer_computes_only_what_is_wanted(models: dict[str, tuple[Path, Any]], name: str) -> None:
    decoder = load_decoder(Checkpoint(models[name][0]), "float32", kernels=kernels.load("reference"))
    token_ids, positions, batch = step(texts())
    caches = decoder.allocate_kv_caches(len(LENGTHS) * 8, BLOCK_SIZE)
    whole = decoder.forward(token_ids, positions, batch, caches)
    first = batch.query_starts[:-1].long()
    wanted = Wanted.of(first, torch.arange(len(LENGTHS)), batch)
    torch.testing.assert_close(decoder.forward(token_ids, positions, batch, caches, wanted), whole[first])


def test_layers_that_keep_nothing_share_memory(models: dict[str, tuple[Path, Any]]) -> None:
    decoder = load_decoder(Checkpoint(models["bert"][0]), "float32", kernels=kernels.load("reference"))
    assert len(decoder.allocate_kv_caches(4, BLOCK_SIZE)) == 1
    assert decoder.kv_bytes_per_block(BLOCK_SIZE) == 2 * BLOCK_SIZE * 64 * 4


def test_every_encoder_is_tested() -> None:
    assert {name for name, _, _ in KINDS.values()} >= set(ENCODERS)
