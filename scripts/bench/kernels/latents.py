"""Decodes that attend to latents, beside grouped heads of as many bytes.

Run as `python -m pageant.scripts.bench.kernels.latents`.

Both read the same memory. DeepSeek-V2-Lite's latents have 16 heads that share 576 numbers a token, of
which 512 are values; the other attention has keys and values of 288 numbers each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pageant import kernels
from pageant.scripts.bench.batches import scattered_batch
from pageant.scripts.bench.kernels.pairs import Pair, in_turn, pairs_of_command

HEADS, LATENT, ROTARY = 16, 512, 64
GROUPS = ((4, 72), (2, 144))
"""Key heads and numbers of each, whose keys and values are as many numbers as a token's latent and rotary key."""
BLOCK, CONTEXT, LAYERS = 16, 2048, 16
"""All layers' caches together are larger than a processor's."""

Cache = tuple[Tensor, Tensor]


def decode_pairs(turns: int, context: int = CONTEXT, dtype: torch.dtype = torch.bfloat16) -> Iterator[Pair]:
    """Yield one layer's attention of 1 and 8 decodes behind `context` tokens: grouped heads, then latents."""
    ours = kernels.load("cpu")
    for sequences in (1, 8):
        batch = scattered_batch([(1, context)] * sequences, BLOCK)
        blocks = int(batch.block_tables.max()) + 1
        latents = _caches(blocks, 1, LATENT + ROTARY, 0, dtype)
        query = torch.randn(sequences, HEADS, LATENT + ROTARY).to(dtype)

        def attend(caches: list[Cache], query: Tensor, value_dim: int | None, turn: int) -> Tensor:
            keys, values = caches[turn // 2 % LAYERS]
            return ours.paged_attention(query, keys, values, batch, 0.1, value_dim=value_dim)  # noqa: B023

        for heads, dim in GROUPS:
            grouped = _caches(blocks, heads, dim, dim, dtype)
            first = partial(attend, grouped, query[:, :, :dim].contiguous(), None)
            what = f"{sequences} of {context} tokens, {heads} key heads of {dim}"
            yield in_turn(what, first, partial(attend, latents, query, LATENT), turns)


def _caches(blocks: int, heads: int, dim: int, value_dim: int, dtype: torch.dtype) -> list[Cache]:
    """Return caches of all layers, whose keys and values are normal numbers."""
    return [
        (
            torch.randn(blocks, heads, BLOCK, dim).to(dtype),
            torch.randn(blocks, heads, BLOCK, value_dim).to(dtype),
        )
        for _ in range(LAYERS)
    ]


if __name__ == "__main__":
    pairs_of_command(__doc__, decode_pairs)
