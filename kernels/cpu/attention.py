"""Attention over the paged KV cache, and what is written into it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, HeadNorms, KVCache
from pageant.kernels.cpu.compiled import CompiledKernels

__all__ = ["AttentionKernels"]

_NO_NORMS = (None, None, False, 0.0)
# The library's numbers of KV caches in 8 bits; others are in the model's dtype.
_KV_FORMATS = {torch.int8: 1, torch.float8_e4m3fn: 2}


class AttentionKernels(CompiledKernels):
    """The `Kernels` that attend, and that write keys and values."""

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        value_dim: int | None = None,
    ) -> Tensor:
        """See `Kernels.paged_attention`."""
        functions = self._functions.get(query.dtype)
        if functions is None:
            return self._fall_back("paged_attention").paged_attention(
                query, key_cache, value_cache, batch, scale, window, softcap, sinks, value_dim
            )
        places = batch.derived.get("cpu")
        if places is None:
            places = batch.derived["cpu"] = (
                batch.query_starts.data_ptr(),
                batch.context_lengths.data_ptr(),
                batch.block_tables.data_ptr(),
                batch.block_tables.stride(0),
                batch.positions.data_ptr(),
                None if batch.ancestors is None else batch.ancestors.data_ptr(),
                batch.context_lengths.shape[0],
            )
        tokens, heads, head_dim = query.shape
        values = value_cache.data_ptr()
        if value_dim is not None:
            values = key_cache.data_ptr() + (head_dim - value_dim) * key_cache.itemsize
        value_dim = value_dim or head_dim
        output = self._empty_padded(query.dtype, tokens, heads * value_dim)
        functions.attention(
            query.data_ptr(),
            query.stride(0),
            key_cache.data_ptr(),
            values,
            output.data_ptr(),
            output.stride(0),
            *places,
            heads,
            key_cache.shape[1],
            head_dim,
            value_dim,
            key_cache.shape[2],
            window or 0,
            _KV_FORMATS.get(key_cache.dtype, 0),
            None if sinks is None else sinks.data_ptr(),
            scale,
            softcap or 0.0,
        )
        return output.view(tokens, heads, value_dim)

    def rope_and_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        norms: HeadNorms | None = None,
    ) -> None:
        """See `Kernels.rope_and_write_kv`."""
        functions = self._functions.get(key.dtype)
        if functions is None:
            return self._fall_back("rope_and_write_kv").rope_and_write_kv(
                query, key, value, cos_sin_cache, positions, key_cache, value_cache, slots, norms
            )
        tokens, heads, head_dim = query.shape
        table, rotary_dim = None, 0
        if cos_sin_cache is not None:
            table, rotary_dim = cos_sin_cache.data_ptr(), cos_sin_cache.shape[1]
        functions.rope_and_write_kv(
            query.data_ptr(),
            query.stride(0),
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
            table,
            positions.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            slots.data_ptr(),
            tokens,
            heads,
            key_cache.shape[1],
            head_dim,
            rotary_dim,
            key_cache.shape[2],
            _KV_FORMATS.get(key_cache.dtype, 0),
            *(_NO_NORMS if norms is None else _norm_arguments(norms)),
        )

    def rope_and_write_latents(
        self,
        query: Tensor,
        latents: Tensor,
        weight: Tensor,
        eps: float,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """See `Kernels.rope_and_write_latents`."""
        functions = self._functions.get(key_cache.dtype)
        if functions is None:
            return self._fall_back("rope_and_write_latents").rope_and_write_latents(
                query, latents, weight, eps, cos_sin_cache, positions, key_cache, slots
            )
        tokens, heads, query_dim = query.shape
        rank, size = len(weight), latents.shape[1]
        turned = self._empty(query.dtype, tokens, heads * size)
        functions.rope_and_write_latents(
            *(query.data_ptr(), query.stride(0), query_dim, latents.data_ptr(), latents.stride(0)),
            weight.data_ptr(),
            None if cos_sin_cache is None else cos_sin_cache.data_ptr(),
            *(positions.data_ptr(), key_cache.data_ptr(), slots.data_ptr(), turned.data_ptr()),
            *(tokens, heads, rank, size - rank, eps),
        )
        return turned.view(tokens, heads, size)

    def multiply_heads(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Kernels.multiply_heads`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            return self._fall_back("multiply_heads").multiply_heads(x, weight, out)
        tokens, heads, inputs = x.shape
        outputs = weight.shape[2]
        if out is None:
            out = self._empty_padded(x.dtype, tokens, heads * outputs).view(tokens, heads, outputs)
        functions.multiply_heads(
            *(x.data_ptr(), x.stride(0), x.stride(1), weight.data_ptr(), *weight.stride()),
            *(out.data_ptr(), out.stride(0), out.stride(1), tokens, heads, inputs, outputs),
        )
        return out

    def write_kv(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
    ) -> None:
        """See `Kernels.write_kv`."""
        self.rope_and_write_kv(key[:, :0], key, value, None, slots, key_cache, value_cache, slots)

    def move_kv(self, caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
        """See `Kernels.move_kv`."""
        by_block: dict[int, list[int]] = {}  # tensors, by the bytes of a block
        for tensor in chain.from_iterable(caches):
            if not tensor.shape[-1]:  # whose strides are those of one column
                continue
            by_block.setdefault(tensor.stride(0) * tensor.itemsize, []).append(tensor.data_ptr())
        for block_bytes, pointers in by_block.items():
            tensors = (ctypes.c_void_p * len(pointers))(*pointers)
            self._library.move_blocks(
                ctypes.addressof(tensors),
                len(pointers),
                block_bytes,
                sources.data_ptr(),
                destinations.data_ptr(),
                len(sources),
            )

    def move_slots(self, caches: Sequence[KVCache], sources: Tensor, destinations: Tensor) -> None:
        """See `Kernels.move_slots`."""
        self._fall_back("move_slots").move_slots(caches, sources, destinations)

    def rope(self, query: Tensor, key: Tensor, cos_sin_cache: Tensor, positions: Tensor) -> None:
        """See `Kernels.rope`. Models rotate and write at once, by `rope_and_write_kv`."""
        self._fall_back("rope").rope(query, key, cos_sin_cache, positions)


def _norm_arguments(norms: HeadNorms) -> tuple[int, int, bool, float]:
    return norms.query.data_ptr(), norms.key.data_ptr(), norms.wide, norms.eps
