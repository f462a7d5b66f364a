"""KV caches in 8 bits beside the reference: bytes that are written, and numbers that attention reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, HeadNorms, Kernels
from pageant.kernels.quantized_kv import cached_parts, dequantize_blocks, quantize_heads, row_size

Numbers = Callable[..., torch.Tensor]
BatchMaker = Callable[..., AttentionBatch]

formats = pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])


def empty_cache(shape: tuple[int, int, int, int], kv: torch.dtype, device: torch.device) -> Tensor:
    """A cache of bytes that make no sense."""
    *rows, head_dim = shape
    return torch.full((*rows, row_size(head_dim, kv)), 0xFF, dtype=torch.uint8, device=device).view(kv)


@pytest.mark.parametrize("head_dim", [24, 32, 9])
@formats
def test_what_is_written_is_what_the_reference_makes_of_a_plain_cache(
    triton_kernels: Kernels,
    numbers: Numbers,
    device: torch.device,
    dtype: torch.dtype,
    kv: torch.dtype,
    head_dim: int,
) -> None:
    tokens, heads, kv_heads = 5, 9, 3
    made = [
        numbers(tokens, heads, head_dim, dtype=dtype, seed=seed) * 10.0 ** (seed - 2) for seed in (1, 2, 3)
    ]
    made[2][3, 1] = 0
    table = None if head_dim % 2 else numbers(50, 16, dtype=torch.float32, seed=2)
    weights = numbers(2, head_dim, dtype=dtype, seed=3)
    norms = HeadNorms(query=weights[0], key=weights[1], eps=1e-2, wide=False) if head_dim == 32 else None
    positions = (torch.arange(tokens, device=device) * 7 + 3) % 50
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:tokens].to(device)
    shape = (10, kv_heads, 4, head_dim)
    plain = [torch.zeros(shape, dtype=dtype, device=device) for _ in "kv"]
    coded = [empty_cache(shape, kv, device) for _ in "kv"]
    untouched = [cache.clone() for cache in coded]
    for caches in (plain, coded):
        query, key, value = (part.clone() for part in made)
        triton_kernels.rope_and_write_kv(
            query, key[:, :kv_heads], value[:, :kv_heads], table, positions, *caches, slots, norms
        )
    blocks, offsets = slots // 4, slots % 4
    for cache, written, before in zip(coded, plain, untouched, strict=True):
        codes, scales = quantize_heads(written[blocks, :, offsets], kv)
        found = [part[blocks, :, offsets] for part in cached_parts(cache)]
        assert torch.equal(found[0], codes.view(torch.uint8)) and torch.equal(found[1], scales)
        for part, old in zip(cached_parts(cache), cached_parts(before), strict=True):
            part[blocks, :, offsets] = old[blocks, :, offsets]
        assert torch.equal(cache.view(torch.uint8), before.view(torch.uint8)), "nothing else was written to"


@formats
def test_what_is_not_finite_spoils_its_own_head_alone(
    triton_kernels: Kernels, numbers: Numbers, device: torch.device, kv: torch.dtype
) -> None:
    key, value = (numbers(3, 2, 24, dtype=torch.float32, seed=seed) for seed in (1, 2))
    key[1, 0, 7], value[2, 1, 23] = float("nan"), float("-inf")
    caches = [empty_cache((1, 2, 4, 24), kv, device) for _ in "kv"]
    triton_kernels.write_kv(key, value, *caches, torch.arange(3, device=device))
    keys, values = (dequantize_blocks(cache, torch.float32)[0, :, :3].transpose(0, 1) for cache in caches)
    assert keys[1, 0].isnan().all() and values[2, 1].isnan().all()
    assert int(keys.isnan().sum() + values.isnan().sum()) == 48


@pytest.mark.parametrize(
    ("lengths", "window", "softcap", "trees"),
    [
        ([(1, 3), (1, 130), (1, 64)], None, None, False),
        ([(1, 90), (1, 17)], 30, 5.0, False),
        ([(40, 70), (1, 20), (0, 9)], None, None, False),
        ([(20, 90), (6, 50)], 30, None, True),
    ],
    ids=["decodes", "windowed", "prefills", "trees"],
)
@formats
def test_attention_reads_what_is_dequantised(
    triton_kernels: Kernels,
    reference: Kernels,
    make_batch: BatchMaker,
    device: torch.device,
    dtype: torch.dtype,
    kv: torch.dtype,
    lengths: list[tuple[int, int]],
    window: int | None,
    softcap: float | None,
    trees: bool,
) -> None:
    """Compare with plain caches; entries that no sequence has written are NaN."""
    for heads, kv_heads, head_dim, block_size in ((4, 2, 24, 16), (3, 1, 32, 4)):
        generator = torch.Generator().manual_seed(head_dim)
        num_blocks = 400 // block_size
        batch = make_batch(lengths, block_size, num_blocks, generator)
        if trees:
            chains = [1 << index for count, _ in lengths for index in range(count)]
            batch = replace(batch, ancestors=torch.tensor(chains, dtype=torch.int64), derived={})
        written = torch.zeros(num_blocks, block_size, dtype=torch.bool)
        for row, context in zip(batch.block_tables.tolist(), batch.context_lengths.tolist(), strict=True):
            for entry in range(context):
                written[row[entry // block_size], entry % block_size] = True
        coded = []
        for _ in "kv":
            made = torch.randn(num_blocks, kv_heads, block_size, head_dim, generator=generator)
            codes, scales = quantize_heads(made.masked_fill(~written[:, None, :, None], float("nan")), kv)
            coded.append(empty_cache(made.shape, kv, torch.device("cpu")))
            for part, new in zip(cached_parts(coded[-1]), (codes.view(torch.uint8), scales), strict=True):
                part.copy_(new)
        query = torch.randn(len(batch.positions), heads, head_dim, generator=generator).to(dtype)
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        there = replace(
            batch, **{n: v.to(device) for n, v in values.items() if isinstance(v, Tensor)}, derived={}
        )
        found = triton_kernels.paged_attention(
            query.to(device), *(cache.to(device) for cache in coded), there, 0.25, window, softcap
        )
        plain = [dequantize_blocks(cache, torch.float32) for cache in coded]
        expected = reference.paged_attention(query.float(), *plain, batch, 0.25, window, softcap)
        error = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu().float(), expected, atol=error, rtol=error)
