"""Attention at the sizes that it is tuned for, beside torch's own in float64 or float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pageant import kernels
from pageant.kernels.base import AttentionBatch

BLOCK = 16
ERRORS = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}


def paged(lengths: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, dtype: torch.dtype):
    """A batch of (new, context), its query and caches, and the dense keys and values of each sequence."""
    generator = torch.Generator("cuda").manual_seed(0)
    counts = [-(-context // BLOCK) for _, context in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)).int()
    tables = list(torch.split_with_sizes(order, counts))
    shape = (sum(counts), heads[1], BLOCK, head_dim)
    caches = [torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(2)]
    positions = torch.cat([torch.arange(context - new, context) for new, context in lengths]).cuda()
    batch = AttentionBatch(
        query_starts=torch.tensor([0, *(new for new, _ in lengths)]).cumsum(0).int().cuda(),
        context_lengths=torch.tensor([context for _, context in lengths]).int().cuda(),
        block_tables=torch.nn.utils.rnn.pad_sequence(tables, batch_first=True, padding_value=-1).cuda(),
        slots=torch.zeros_like(positions),
        positions=positions,
        max_query_length=max(new for new, _ in lengths),
        max_context_length=max(context for _, context in lengths),
    )
    query = torch.randn(len(positions), heads[0], head_dim, generator=generator, device="cuda").to(dtype)
    dense = [
        [cache[table.cuda().long()].transpose(0, 1).flatten(1, 2)[:, :context].float() for cache in caches]
        for table, (_, context) in zip(tables, lengths, strict=True)
    ]
    return batch, query, caches, dense


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize(
    "lengths",
    [[(1, 8000), (1, 1), (1, 4097)], [(700, 700), (1, 3000), (300, 5000)], [(5, 2000), (8, 8), (1, 900)]],
    ids=["decode", "mixed", "drafts"],
)
def test_long_contexts(
    dtype: torch.dtype, head_dim: int, window: int | None, lengths: list[tuple[int, int]]
) -> None:
    batch, query, caches, dense = paged(lengths, (32, 8), head_dim, dtype)
    scale = head_dim**-0.5
    found = kernels.load("triton", "cuda").paged_attention(query, *caches, batch, scale, window)
    starts = batch.query_starts.tolist()
    for (new, context), (keys, values), start in zip(lengths, dense, starts, strict=False):
        places = torch.arange(context, device="cuda")
        own = places[context - new :, None]
        mask = (places <= own) & (places > own - (window or context + 1))
        expected = F.scaled_dot_product_attention(
            query[start : start + new].float().transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
        error = ERRORS[dtype]
        torch.testing.assert_close(found[start : start + new].float(), expected, atol=error, rtol=error)
