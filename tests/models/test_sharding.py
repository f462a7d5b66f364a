"""Shares of models: as many ranks compute what one does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.kernels.collectives.local import local_group
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.native import NativeDecoder
from pageant.models.sharding import Shard
from pageant.models.share_checks import objection_to
from pageant.models.spec import DecoderSpec

DEMO = Path(__file__).parents[2] / "models" / "demo"
TOKENS = 13


@torch.inference_mode()
def run(decoder: NativeDecoder) -> torch.Tensor:
    """Return the logits, float32 [TOKENS, V], after each of some tokens."""
    token_ids, positions = torch.arange(5, 5 + TOKENS), torch.arange(TOKENS)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, TOKENS], dtype=torch.int32),
        context_lengths=torch.tensor([TOKENS], dtype=torch.int32),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        slots=16 + positions,
        positions=positions,
        max_query_length=TOKENS,
        max_context_length=TOKENS,
    )
    return decoder.logits(decoder.forward(token_ids, positions, batch, decoder.allocate_kv_caches(2, 16)))


def load(ranks: int = 1, rank: int = 0, **settings: object) -> NativeDecoder:
    shard = Shard(rank, ranks) if ranks > 1 else None
    backend = kernels.load("reference")
    decoder = load_decoder(Checkpoint(DEMO), kernels=backend, shard=shard, **settings)  # type: ignore[arg-type]
    assert isinstance(decoder, NativeDecoder)
    return decoder


def together(ranks: int, **settings: object) -> torch.Tensor:
    """Return the logits of as many ranks, in threads; and check that none holds more than its share."""
    found: dict[int, torch.Tensor] = {}
    whole = load(**settings).num_bytes

    def one(rank: int, decoder: NativeDecoder) -> Callable[[], None]:
        return lambda: found.update({rank: run(decoder)})

    threads = []
    for rank, collectives in enumerate(local_group(ranks)):
        decoder = load(ranks, rank, **settings)
        decoder.join(collectives)
        assert decoder.num_bytes < 1.1 * whole / ranks, "its share, the norms, and heads that two ranks have"
        threads.append(threading.Thread(target=one(rank, decoder)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("settings", [{}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_ranks_compute_what_one_does(ranks: int, settings: dict[str, object]) -> None:
    """Four ranks have two key heads: each of these is on two ranks."""
    alone, group = run(load(dtype="float32", **settings)), together(ranks, dtype="float32", **settings)
    torch.testing.assert_close(group, alone, rtol=0, atol=2e-5)
    assert (group.argmax(-1) == alone.argmax(-1)).all()


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (3, "4 attention heads do not divide by 3; expected 1, 2 or 4"),
        (8, "4 attention heads do not divide by 8; expected 1, 2 or 4"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_would(ranks: int, message: str) -> None:
    assert objection_to(Checkpoint(DEMO).decoder()[0], ranks) == message
    with pytest.raises(CheckpointError, match=f"tensor_parallel {ranks}: 4 attention heads do not divide"):
        load(ranks)


def spec_of(**attention: Any) -> DecoderSpec:
    spec = Checkpoint(DEMO).decoder()[0]
    return replace(spec, attention=replace(spec.attention, **attention))


def test_heads_that_ranks_cannot_have_alike_are_refused() -> None:
    assert "6 key and value heads are neither a multiple nor a divisor of 4" in objection_to(
        spec_of(num_heads=12, num_kv_heads=6), 4
    )
    assert "over all heads at once; expected 1" in objection_to(spec_of(qk_norm="projection"), 2)
    assert objection_to(spec_of(num_heads=4, num_kv_heads=1), 4) == "", "each has the one key head"


def test_widths_that_tiles_and_scales_do_not_fit_are_refused() -> None:
    spec = Checkpoint(DEMO).decoder()[0]
    narrow = tuple(replace(layer, mlp=replace(layer.mlp, size=96)) for layer in spec.layers)
    assert objection_to(replace(spec, layers=narrow), 2) == (
        "the MLPs' inner layers are 96 wide, which is no multiple of 32 x 2; expected 1"
    )
