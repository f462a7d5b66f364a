"""Shares of models: as many ranks compute what one does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.kernels.collectives.local import local_group
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.loading import check_ranks, load_decoder
from pageant.models.native import NativeDecoder
from pageant.models.sharding import Shard, objection_to

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
    spec, _ = Checkpoint(DEMO).decoder()
    assert objection_to(spec, ranks) == message
    with pytest.raises(CheckpointError, match=f"tensor_parallel: {ranks}, and 4 attention heads"):
        check_ranks(Checkpoint(DEMO), ranks)
