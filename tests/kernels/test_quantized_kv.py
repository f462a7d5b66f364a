"""KV caches in 8 bits: what is written, what is read again, and what moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, HeadNorms
from pageant.kernels.quantized_kv import (
    SCALE_BYTES,
    cached_parts,
    dequantize_blocks,
    kv_dtype,
    quantize_heads,
    row_size,
)
from pageant.kernels.reference import ReferenceKernels

BatchMaker = Callable[..., AttentionBatch]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMATS = [torch.int8, torch.float8_e4m3fn]
ERRORS = {torch.int8: 1 / 254, torch.float8_e4m3fn: 1 / 16}
"""Half a step at a head's largest number, by which its errors are measured."""

formats = pytest.mark.parametrize("kv", FORMATS, ids=["int8", "fp8"])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])


def empty_cache(num_blocks: int, heads: int, block_size: int, head_dim: int, kv: torch.dtype) -> Tensor:
    """A cache of bytes that make no sense."""
    shape = (num_blocks, heads, block_size, row_size(head_dim, kv))
    return torch.full(shape, 0xFF, dtype=torch.uint8).view(kv)


def coded_cache(plain: Tensor, kv: torch.dtype) -> Tensor:
    """A plain cache in 8 bits; entries that are NaN stay so."""
    cache = empty_cache(*plain.shape, kv)
    codes, scales = quantize_heads(plain, kv)
    for part, new in zip(cached_parts(cache), (codes.view(torch.uint8), scales), strict=True):
        part.copy_(new)
    return cache


@pytest.mark.parametrize("head_dim", [1, 16, 80, 128])
@dtypes
@formats
def test_a_head_is_off_by_half_a_step_of_its_own_scale(
    kv: torch.dtype, dtype: torch.dtype, head_dim: int
) -> None:
    heads = torch.randn(50, 3, head_dim) * 10.0 ** torch.randint(-6, 4, (50, 3, 1))
    heads = heads.to(dtype)
    codes, scales = quantize_heads(heads, kv)
    largest = heads.double().abs().amax(-1, keepdim=True)
    found = codes.double() * scales.double()[..., None]
    assert (found - heads.double()).abs().le(largest * ERRORS[kv] * 1.0001).all()
    # The largest number is exact, but for its scale's rounding.
    torch.testing.assert_close(found.abs().amax(-1, keepdim=True), largest, rtol=1e-6, atol=0)


@formats
def test_zeros_stay_zeros_and_what_is_not_finite_spoils_its_own_head_alone(
    every_level: ReferenceKernels, kv: torch.dtype
) -> None:
    key, value = torch.randn(4, 2, 24), torch.randn(4, 2, 24)
    key[1, 0, 7], value[2, 1, 23], key[3], value[3, 1] = float("nan"), float("-inf"), 0, 1e-44
    caches = [empty_cache(1, 2, 4, 24, kv) for _ in range(2)]
    every_level.write_kv(key, value, *caches, torch.arange(4))
    keys, values = (dequantize_blocks(cache, torch.float32)[0].transpose(0, 1) for cache in caches)
    assert keys[1, 0].isnan().all() and values[2, 1].isnan().all()
    assert not keys[3].any() and not values[3, 1].any()
    assert int(keys.isnan().sum() + values.isnan().sum()) == 48


@pytest.mark.parametrize("head_dim", [8, 20, 33, 64, 80, 128])
@dtypes
@formats
def test_heads_are_quantised_as_they_would_be_written(
    every_level: ReferenceKernels, kv: torch.dtype, dtype: torch.dtype, head_dim: int
) -> None:
    """Every backend has the reference's codes and scales of what it writes to a cache in the model's dtype."""
    tokens, heads, kv_heads, block_size = 9, 4, 2, 4
    even = head_dim // 2 * 2
    made = torch.randn(3, tokens, heads, head_dim).to(dtype)
    angles = torch.outer(torch.arange(20.0), torch.rand(even // 2))
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    norms = HeadNorms(
        query=torch.rand(head_dim).to(dtype), key=torch.rand(head_dim).to(dtype), eps=1e-6, wide=False
    )
    positions, slots = torch.arange(5, 14), torch.randperm(20)[:tokens]
    plain = [torch.zeros(5, kv_heads, block_size, head_dim, dtype=dtype) for _ in range(2)]
    coded = [empty_cache(5, kv_heads, block_size, head_dim, kv) for _ in range(2)]
    untouched = [cache.clone() for cache in coded]
    for caches in (plain, coded):
        query, key, value = made.clone()
        key, value = key[:, :kv_heads], value[:, :kv_heads]
        every_level.rope_and_write_kv(query, key, value, table, positions, *caches, slots, norms)
    blocks, offsets = slots // block_size, slots % block_size
    for cache, written, before in zip(coded, plain, untouched, strict=True):
        codes, scales = quantize_heads(written[blocks, :, offsets], kv)
        found = [part[blocks, :, offsets] for part in cached_parts(cache)]
        assert torch.equal(found[0], codes.view(torch.uint8)) and torch.equal(found[1], scales)
        for part, old in zip(cached_parts(cache), cached_parts(before), strict=True):
            part[blocks, :, offsets] = old[blocks, :, offsets]
        assert torch.equal(cache.view(torch.uint8), before.view(torch.uint8)), "nothing else was written to"


SEQUENCES = [
    [(1, 1), (1, 700), (1, 33)],
    [(3, 530), (1, 64), (70, 90)],
    [(40, 1100), (0, 9), (5, 5)],
]


@pytest.mark.parametrize("lengths", SEQUENCES, ids=["decodes", "mixed", "chunks"])
@pytest.mark.parametrize("window", [None, 50])
@dtypes
@formats
def test_attention_reads_what_is_dequantised(
    every_level: ReferenceKernels,
    make_batch: BatchMaker,
    kv: torch.dtype,
    dtype: torch.dtype,
    window: int | None,
    lengths: list[tuple[int, int]],
) -> None:
    """Compare in float32: the scale of a key goes into its score, and that of a value into its weight.

    Entries that no sequence has written are NaN.
    """
    for seed, (heads, kv_heads, head_dim, block_size) in enumerate(
        [(4, 2, 40, 16), (3, 1, 64, 4), (16, 2, 33, 4)]
    ):
        generator = torch.Generator().manual_seed(seed)
        num_blocks = sum(-(-context // block_size) for _, context in lengths) + 5
        batch = make_batch(lengths, block_size, num_blocks, generator)
        written = torch.zeros(num_blocks, block_size, dtype=torch.bool)
        for table, context in zip(batch.block_tables.tolist(), batch.context_lengths.tolist(), strict=True):
            for entry in range(context):
                written[table[entry // block_size], entry % block_size] = True
        shape = (num_blocks, kv_heads, block_size, head_dim)
        coded = [
            coded_cache(
                torch.randn(shape, generator=generator).masked_fill(~written[:, None, :, None], float("nan")),
                kv,
            )
            for _ in range(2)
        ]
        plain = [dequantize_blocks(cache, torch.float32) for cache in coded]
        query = torch.randn(len(batch.positions), heads, head_dim, generator=generator).to(dtype)
        softcap = 5.0 if seed == 1 else None
        trees = with_chains(batch) if seed == 2 else batch
        found = every_level.paged_attention(query, *coded, trees, 0.2, window, softcap)
        exact = every_level.paged_attention(
            query.float(), *plain, replace(trees, derived={}), 0.2, window, softcap
        )
        assert found.dtype == dtype and found.isfinite().all()
        if dtype == torch.float32 and every_level.name == "reference":
            assert torch.equal(found, exact)
        elif dtype == torch.float32:
            torch.testing.assert_close(found, exact, atol=2e-6, rtol=2e-6)
        else:
            torch.testing.assert_close(found.float(), exact, atol=0.02, rtol=0.02)


def with_chains(batch: AttentionBatch) -> AttentionBatch:
    """The batch with its short sequences as trees of drafts, each token the child of the one before the last."""
    ancestors = torch.zeros_like(batch.positions)
    for start, stop in zip(batch.query_starts[:-1].tolist(), batch.query_starts[1:].tolist(), strict=True):
        for index in range(stop - start if stop - start <= 64 else 0):
            above = ancestors[start + index - 2] if index > 1 else 0
            ancestors[start + index] = above | 1 << index
    return replace(batch, ancestors=ancestors, derived={})


@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (40, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@formats
def test_a_token_is_computed_alike_alone_and_in_any_chunk(
    every_level: ReferenceKernels,
    make_batch: BatchMaker,
    kv: torch.dtype,
    dtype: torch.dtype,
    head_dim: int,
    block_size: int,
) -> None:
    """Compare a prompt computed whole with the same in chunks: cached bytes depend on their own token alone."""
    if every_level.name == "reference":
        pytest.skip("torch chooses its algorithm by shapes")
    context, heads, num_blocks = 600, 4, 600 // block_size + 3
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, context, heads, head_dim, generator=generator).to(dtype)
    whole = make_batch([(context, context)], block_size, num_blocks, generator)
    found: list[Tensor] = []
    for starts in ([0], [0, 1, 17, 500, 599], [0, 300]):
        caches = [empty_cache(num_blocks, 2, block_size, head_dim, kv) for _ in range(2)]
        chunks = []
        for start, stop in zip(starts, [*starts[1:], context], strict=True):
            some = slice(start, stop)
            every_level.write_kv(key[some, :2], value[some, :2], *caches, whole.slots[some])
            batch = replace(
                whole,
                query_starts=torch.tensor([0, stop - start], dtype=torch.int32),
                context_lengths=torch.tensor([stop], dtype=torch.int32),
                slots=whole.slots[some],
                positions=whole.positions[some],
                max_query_length=stop - start,
                max_context_length=stop,
                derived={},
            )
            chunks.append(every_level.paged_attention(query[some], *caches, batch, 0.125))
        found.append(torch.cat(chunks))
    assert all(torch.equal(one, found[0]) for one in found)


@formats
def test_blocks_and_tokens_move_with_their_scales(every_level: ReferenceKernels, kv: torch.dtype) -> None:
    plain = [torch.randn(6, 2, 4, 8) for _ in range(2)]
    coded = [coded_cache(cache, kv) for cache in plain]
    expected = [dequantize_blocks(cache, torch.float32) for cache in coded]
    every_level.move_kv([(coded[0], coded[1])], torch.tensor([0, 1, 5]), torch.tensor([1, 0, 2]))
    sources, destinations = torch.tensor([5, 6, 11]), torch.tensor([4, 5, 0])
    every_level.move_slots([(coded[0], coded[1])], sources, destinations)
    for cache, was in zip(coded, expected, strict=True):
        moved = was[[1, 0, 5, 3, 4, 5]]
        after = moved.clone()
        after[destinations // 4, :, destinations % 4] = moved[sources // 4, :, sources % 4]
        assert torch.equal(dequantize_blocks(cache, torch.float32), after)


def test_the_same_bytes_hold_nearly_twice_the_tokens() -> None:
    assert kv_dtype("auto", torch.bfloat16) == torch.bfloat16 and row_size(128, torch.bfloat16) == 128
    for name, dtype in (("int8", torch.int8), ("fp8", torch.float8_e4m3fn)):
        assert kv_dtype(name, torch.bfloat16) == dtype
        assert 2 * 128 / row_size(128, dtype) > 1.93
        cache = torch.zeros(3, 2, 16, row_size(128, dtype), dtype=torch.uint8).view(dtype)
        codes, scales = cached_parts(cache)
        assert codes.numel() + SCALE_BYTES * scales.numel() == cache.nbytes
        assert codes.shape == (3, 2, 16, 128) and scales.shape == (3, 2, 16)
