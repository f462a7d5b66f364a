"""Shares of checkpoints that come quantised: ranks together compute what one does, from the same codes and scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.kernels.collectives.local import local_group
from pageant.models import Checkpoint, CheckpointError
from pageant.models.loading import load_decoder
from pageant.models.native import NativeDecoder
from pageant.models.sharding import Shard
from pageant.models.share_checks import why_not_shared
from tests.kernels.collectives.groups import in_threads

FIXTURES = Path(__file__).parent / "fixtures"
DIVIDE = ("awq", "bnb_fp4", "bnb_int8", "bnb_nested", "bnb_nf4", "gptq_moe")
"""Checkpoints whose inner layers are wide enough to be cut in two."""


def loaded(path: Path, shard: Shard | None = None) -> NativeDecoder:
    decoder = load_decoder(Checkpoint(path), "float32", kernels=kernels.load("reference"), shard=shard)
    assert isinstance(decoder, NativeDecoder)
    return decoder


@torch.inference_mode()
def run(decoder: NativeDecoder, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits, float32 [len(ids), V], after each of some tokens."""
    positions = torch.arange(len(ids))
    batch = AttentionBatch(
        query_starts=torch.tensor([0, len(ids)], dtype=torch.int32),
        context_lengths=torch.tensor([len(ids)], dtype=torch.int32),
        block_tables=torch.tensor([[0]], dtype=torch.int32),
        slots=positions,
        positions=positions,
        max_query_length=len(ids),
        max_context_length=len(ids),
    )
    caches = decoder.allocate_kv_caches(1, 64)
    return decoder.logits(decoder.forward(torch.tensor(ids), positions, batch, caches))


@pytest.mark.parametrize("name", DIVIDE)
def test_two_ranks_compute_what_the_maker_does(name: str) -> None:
    path = FIXTURES / name
    ids = [int(one) for one in np.load(path / "expected.npz")["ids"].flatten()[:40]]
    alone = loaded(path)
    decoders = [loaded(path, Shard(rank, 2)) for rank in range(2)]
    for decoder, collectives in zip(decoders, local_group(2), strict=True):
        decoder.join(collectives)
    first, second = in_threads([lambda one=one: run(one, ids) for one in decoders])
    assert isinstance(first, torch.Tensor), first
    assert isinstance(second, torch.Tensor), second
    torch.testing.assert_close(first, run(alone, ids), rtol=1e-4, atol=1e-4)
    assert max(decoder.num_bytes for decoder in decoders) < 0.75 * alone.num_bytes


def test_act_order_is_refused_where_inputs_would_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pageant.models.share_checks.INPUTS", 16)  # what these small layers divide by
    assert "act-order" in why_not_shared(Checkpoint(FIXTURES / "gptq_act"), 2)
    assert why_not_shared(Checkpoint(FIXTURES / "gptq"), 2) == ""


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()))
def test_a_cut_of_a_module_has_the_codes_and_scales_of_the_whole(name: str) -> None:
    checkpoint = Checkpoint(FIXTURES / name)
    ready = checkpoint.ready
    assert ready is not None
    tensors = made_tensors(checkpoint)
    for module in list(ready.modules.values())[:4]:
        parts = {role: tensors(info.name) for role, info in module.parts.items()}
        whole = module.decode(parts, slice(0, module.outputs)).plain()
        for start, stop in ((0, 32), (32, module.inputs), (module.inputs - 32, module.inputs)):
            cut = module.decode(parts, slice(0, module.outputs)).from_row(5).columns(start, stop).plain()
            assert torch.equal(cut, whole[5:, start:stop])
        padded = module.decode(parts, slice(0, module.outputs)).padded(3).plain()
        assert torch.equal(padded, torch.cat([whole, torch.zeros(3, module.inputs)]))


def made_tensors(checkpoint: Checkpoint) -> Callable[[str], torch.Tensor]:
    from safetensors import safe_open

    file = safe_open(checkpoint.weight_files[0], framework="pt")
    return lambda name: file.get_tensor(name)


def test_layers_that_are_too_narrow_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(CheckpointError, match="inner layers are 96 wide, which is no multiple of 32 x 2"):
        loaded(FIXTURES / "ct_w4a16", Shard(0, 2))
