"""Writes into the paged KV cache, and moves of whole blocks of all layers in two launches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import KVCache
from pageant.kernels.quantized_kv import is_quantized
from pageant.kernels.triton.heads import rope_and_write_kv
from pageant.kernels.triton.launching import cdiv, next_power_of_2

__all__ = ["copy_blocks", "move_kv", "write_kv", "write_tokens"]

_WORDS = 1024  # int32 words of a block that a program copies


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """See `Kernels.write_kv`."""
    tokens, kv_heads, head_dim = key.shape
    for heads in (key, value):
        assert heads.stride(2) == 1 and heads.stride(1) == head_dim
    assert key_cache.is_contiguous() and value_cache.is_contiguous()
    if is_quantized(key_cache):  # by heads, which have scales
        return rope_and_write_kv(key[:, :0], key, value, None, slots, key_cache, value_cache, slots)
    width = next_power_of_2(kv_heads * head_dim)
    write_tokens[(tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slots,
        key.stride(0),
        value.stride(0),
        HEADS=kv_heads,
        BLOCK_SIZE=key_cache.shape[2],
        DIM=head_dim,
        WIDTH=width,
        num_warps=min(8, max(1, width // 256)),
    )


@triton.jit
def write_tokens(
    key,
    value,
    key_cache,
    value_cache,
    slots,
    key_stride,
    value_stride,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program (token)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    element = tl.arange(0, WIDTH)
    there = element < HEADS * DIM
    place = (slot // BLOCK_SIZE * HEADS + element // DIM) * BLOCK_SIZE + slot % BLOCK_SIZE
    place = place * DIM + element % DIM
    tl.store(key_cache + place, tl.load(key + token * key_stride + element, mask=there), mask=there)
    tl.store(value_cache + place, tl.load(value + token * value_stride + element, mask=there), mask=there)


def move_kv(caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
    """See `Kernels.move_kv`. What is read waits in a buffer for all of it to be read."""
    tensors = [cache for pair in caches for cache in pair if cache.shape[-1]]
    moved = sources.shape[0]
    if not moved or not tensors:
        return
    block_bytes = tensors[0][0].nbytes
    assert block_bytes % 4 == 0 and all(cache[0].nbytes == block_bytes for cache in tensors)
    words = block_bytes // 4
    addresses = torch.tensor([cache.data_ptr() for cache in tensors]).to(sources.device)
    held = torch.empty((len(tensors), moved, words), dtype=torch.int32, device=sources.device)
    grid = (moved, len(tensors), cdiv(words, _WORDS))
    copy_blocks[grid](addresses, held, sources, BLOCK=words, WORDS=_WORDS, INTO=False, num_warps=4)
    copy_blocks[grid](addresses, held, destinations, BLOCK=words, WORDS=_WORDS, INTO=True, num_warps=4)


@triton.jit
def copy_blocks(addresses, held, blocks, BLOCK: tl.constexpr, WORDS: tl.constexpr, INTO: tl.constexpr):
    """Program (move, cache, some words): from a cache's block to what is held, or from there into the cache."""
    move = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    there = word < BLOCK
    cache = tl.load(addresses + tensor).to(tl.pointer_type(tl.int32))
    cache = cache + tl.load(blocks + move) * BLOCK + word
    buffer = held + (tensor * tl.num_programs(0).to(tl.int64) + move) * BLOCK + word
    if INTO:
        tl.store(cache, tl.load(buffer, mask=there), mask=there)
    else:
        tl.store(buffer, tl.load(cache, mask=there), mask=there)
