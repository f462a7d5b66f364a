"""Attention of one layer, from the normalised input to its output projection."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.norm import Norm
from pageant.models.spec import DecoderSpec

__all__ = ["Attention"]


class Attention:
    """Grouped-query attention over the paged cache; `rotary` is None where nothing is turned."""

    def __init__(
        self,
        spec: DecoderSpec,
        window: int | None,
        rotary: Tensor | None,
        weights: Mapping[str, Tensor],
        kernels: Kernels,
    ) -> None:
        attention = spec.attention
        self._kernels = kernels
        self._rotary = rotary
        self._head_dim = attention.head_dim
        self._split = [attention.query_size, attention.kv_size, attention.kv_size]
        self._qkv = weights["qkv.weight"], weights.get("qkv.bias")
        self._o = weights["o.weight"], weights.get("o.bias")
        self._scale, self._window, self._softcap = attention.scale, window, attention.softcap
        self._normalise = None
        if attention.qk_norm is not None:
            self._query_norm = Norm(spec.norm, "query_norm", weights, kernels)
            self._key_norm = Norm(spec.norm, "key_norm", weights, kernels)
            by_head = attention.qk_norm == "head"
            self._normalise = self._normalise_heads if by_head else self._normalise_projections

    def __call__(self, normed: Tensor, positions: Tensor, batch: AttentionBatch, kv_cache: KVCache) -> Tensor:
        """Return [T, hidden_size] for normed [T, hidden_size]. Mutates the cache at the batch's slots."""
        kernels = self._kernels
        query, key, value = (
            part.view(part.shape[0], -1, self._head_dim)
            for part in torch.split_with_sizes(kernels.linear(normed, *self._qkv), self._split, dim=-1)
        )  # [T, H, D], [T, Hkv, D], [T, Hkv, D]
        if self._normalise is not None:
            query, key = self._normalise(query, key)
        if self._rotary is not None:
            kernels.rope(query, key, self._rotary, positions)
        kernels.write_kv(key, value, *kv_cache, batch.slots)
        attended = kernels.paged_attention(query, *kv_cache, batch, self._scale, self._window, self._softcap)
        return kernels.linear(attended.flatten(1), *self._o)

    def _normalise_heads(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self._query_norm(query), self._key_norm(key)

    def _normalise_projections(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        normed_query, normed_key = self._query_norm(query.flatten(1)), self._key_norm(key.flatten(1))
        return normed_query.view(query.shape), normed_key.view(key.shape)
