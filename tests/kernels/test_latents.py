"""Kernels of latent attention: every backend and instruction set against dense arithmetic in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels
from pageant.kernels.cpu import CpuKernels
from pageant.kernels.reference import ReferenceKernels
from tests.kernels.test_attention import blocks_for, dense, make_inputs

BatchMaker = Callable[..., AttentionBatch]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [(1, 33), (9, 20), (1, 4), (16, 16), (1, 700), (70, 600), (3, 1030)]
"""Decodes, chunks with and without a context, and contexts of several splits."""


def step_of(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 0.02


def absorbed(
    make_batch: BatchMaker,
    heads: int,
    rotary: int,
    rank: int,
    block_size: int,
    dtype: torch.dtype,
    lengths: list[tuple[int, int]] = LENGTHS,
) -> tuple[AttentionBatch, Tensor, Tensor, Tensor]:
    """A batch, queries, keys of which no others are written, and values without columns."""
    generator = torch.Generator().manual_seed(heads + rank)
    num_blocks = blocks_for(lengths, block_size)
    batch = make_batch(lengths, block_size, num_blocks, generator)
    size = rotary + rank
    query, keys, _ = make_inputs(batch, (heads, 1), size, block_size, num_blocks, generator, dtype)
    return batch, query, keys, keys.new_empty(*keys.shape[:3], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "rotary", "rank"), [(1, 8, 24), (4, 8, 32), (3, 6, 17), (20, 64, 512), (40, 16, 40)]
)
def test_values_are_the_last_numbers_of_keys(
    every_level: Kernels, make_batch: BatchMaker, heads: int, rotary: int, rank: int, dtype: torch.dtype
) -> None:
    lengths = LENGTHS if rank < 512 else [(1, 33), (9, 20), (1, 530)]
    batch, query, keys, values = absorbed(make_batch, heads, rotary, rank, 16, dtype, lengths)
    found = every_level.paged_attention(query, keys, values, batch, 0.1, value_dim=rank)
    expected = dense(query, keys, keys, batch, 0.1)[..., rotary:]
    assert found.shape == (len(query), heads, rank) and found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=step_of(dtype), rtol=step_of(dtype))


@pytest.mark.parametrize("block_size", [1, 5, 32])
def test_blocks_of_any_size_hold_latents(
    every_level: Kernels, make_batch: BatchMaker, block_size: int
) -> None:
    batch, query, keys, values = absorbed(make_batch, 5, 8, 24, block_size, torch.float32)
    found = every_level.paged_attention(query, keys, values, batch, 0.2, 11, value_dim=24)
    expected = dense(query, keys, keys, batch, 0.2, window=11)[..., 8:]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [2, 16, 40])
def test_a_row_of_latents_has_the_same_bits_alone_and_among_others(
    leveled: CpuKernels, make_batch: BatchMaker, heads: int, dtype: torch.dtype
) -> None:
    batch, query, keys, values = absorbed(make_batch, heads, 8, 40, 16, dtype)
    together = leveled.paged_attention(query, keys, values, batch, 0.2, value_dim=40)
    for sequence in (0, 4, 6):
        start, stop = batch.query_starts[sequence : sequence + 2].tolist()
        for token in {start, stop - 1}:
            alone = AttentionBatch(
                query_starts=torch.tensor([0, 1], dtype=torch.int32),
                context_lengths=(batch.positions[token : token + 1] + 1).int(),
                block_tables=batch.block_tables[sequence : sequence + 1],
                slots=batch.slots[token : token + 1],
                positions=batch.positions[token : token + 1],
                max_query_length=1,
                max_context_length=int(batch.positions[token]) + 1,
            )
            row = leveled.paged_attention(query[token : token + 1], keys, values, alone, 0.2, value_dim=40)
            assert torch.equal(row[0], together[token])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turns", [True, False])
def test_latents_are_written_as_norm_and_rotation_make_them(
    leveled: CpuKernels, dtype: torch.dtype, turns: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    tokens, heads, plain, rotary, rank = 37, 3, 12, 10, 41
    queries = torch.randn(tokens, heads * (plain + rotary) + 7, generator=generator).to(dtype)
    query = queries[:, : heads * (plain + rotary)].view(tokens, heads, plain + rotary)
    latents = torch.randn(tokens, rank + rotary + 5, generator=generator).to(dtype)[:, : rank + rotary]
    weight = torch.randn(rank, generator=generator).to(dtype)
    table = torch.randn(50, rotary, generator=generator) if turns else None
    positions = torch.randint(50, (tokens,), generator=generator)
    slots = torch.randperm(64, generator=generator)[:tokens]
    found, expected = (torch.full((16, 1, 4, rotary + rank), 9.0, dtype=dtype) for _ in range(2))
    ours = leveled.rope_and_write_latents(query, latents, weight, 1e-5, table, positions, found, slots)
    theirs = ReferenceKernels().rope_and_write_latents(
        query, latents, weight, 1e-5, table, positions, expected, slots
    )
    assert ours.shape == (tokens, heads, rotary + rank) and ours.is_contiguous()
    step = 1e-6 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(ours[..., :rotary], theirs[..., :rotary], atol=step, rtol=step)
    torch.testing.assert_close(found, expected, atol=step, rtol=step)
    assert (found.view(64, -1).eq(9).all(1).sum()) == 64 - tokens, "other slots are left alone"


def test_the_reference_turns_the_key_and_normalises_the_latent() -> None:
    """Position 1 turns a pair by a right angle, and the norm of (3, 4) is 5 / sqrt(2)."""
    cache, table = torch.zeros(2, 1, 1, 4), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    latents, query = torch.tensor([[3.0, 4.0, 1.0, 2.0]]), torch.tensor([[[7.0, 5.0, 6.0]]])
    turned = ReferenceKernels().rope_and_write_latents(
        query, latents, torch.tensor([1.0, 2.0]), 0.0, table, torch.tensor([1]), cache, torch.tensor([1])
    )
    half = 2**0.5 / 5
    torch.testing.assert_close(cache[1, 0, 0], torch.tensor([-2.0, 1.0, 3 * half, 8 * half]))
    torch.testing.assert_close(turned[0, 0, :2], torch.tensor([-6.0, 5.0]))
    assert not cache[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [0, 1, 5, 130])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 32), (33, 70), (128, 5)])
def test_each_head_is_multiplied_by_its_own_matrix(
    every_level: Kernels, dtype: torch.dtype, tokens: int, inputs: int, outputs: int
) -> None:
    generator = torch.Generator().manual_seed(tokens + inputs)
    heads = 3
    x = torch.randn(tokens, heads, inputs + 9, generator=generator).to(dtype)[..., :inputs]
    by_rows = torch.randn(heads, inputs + 2, outputs, generator=generator).to(dtype)[:, :inputs]
    by_columns = torch.randn(heads, outputs, inputs, generator=generator).to(dtype).transpose(1, 2)
    for weight in (by_rows, by_columns):
        expected = torch.einsum("thn,hnm->thm", x.double(), weight.double())
        found = every_level.multiply_heads(x, weight)
        step = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(found.double(), expected, atol=step, rtol=step)
        room = torch.full((tokens, heads, outputs + 4), 9.0, dtype=dtype)
        into = every_level.multiply_heads(x, weight, out=room[..., 4:])
        assert torch.equal(into, found) and torch.equal(room[..., 4:], found)
        assert room[..., :4].eq(9).all(), "what is beside it is left alone"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_heads_has_the_same_bits_alone_and_among_others(
    leveled: CpuKernels, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(70, 2, 45, generator=generator).to(dtype)
    weight = torch.randn(2, 45, 37, generator=generator).to(dtype)
    for one in (weight, weight.transpose(1, 2).contiguous().transpose(1, 2)):
        together = leveled.multiply_heads(x, one)
        assert all(torch.equal(leveled.multiply_heads(x[t : t + 1], one)[0], together[t]) for t in (0, 5, 69))


def test_experts_are_chosen_of_the_groups_with_the_best_expert(backend: Kernels) -> None:
    """Of four groups of two, groups 0 and 3 have the largest logits; the second best expert is in group 2."""
    logits = torch.tensor([[5.0, -1.0, 0.0, 0.0, 1.0, 4.0, -2.0, 4.5]])
    weights, experts = backend.route_in_groups(logits, 3, False, scale=2.0, groups=4, groups_kept=2)
    assert experts.tolist() == [[0, 7, 1]]
    torch.testing.assert_close(weights, 2 * logits.softmax(-1)[:, [0, 7, 1]])
    weights, experts = backend.route_in_groups(logits, 3, True, scale=2.0, groups=1, groups_kept=1)
    assert experts.tolist() == [[0, 7, 5]]
    torch.testing.assert_close(weights.sum(), torch.tensor(2.0))
