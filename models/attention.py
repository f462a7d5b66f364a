"""Attention of one layer, from the normalised input to its output projection."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, HeadNorms, Kernels, KVCache
from pageant.kernels.reference.attention import attend_span
from pageant.models.decoder import Wanted
from pageant.models.joint import Joint
from pageant.models.norm import Norm
from pageant.models.projection import Projection, output_projection
from pageant.models.spec import DecoderSpec, NormSpec
from pageant.models.weights import Weights

__all__ = ["Attention"]


class Attention:
    """Grouped-query attention over the paged cache; `rotary` is None where nothing is turned."""

    def __init__(
        self,
        spec: DecoderSpec,
        window: int | None,
        rotary: Tensor | None,
        weights: Weights,
        kernels: Kernels,
        joint: Joint | None = None,
    ) -> None:
        attention = spec.attention
        self._kernels = kernels
        self.rotary = rotary
        """[positions, rotary_dim]. Of a step's own tokens, while one is computed whose positions are by three axes."""
        self._head_dim = attention.head_dim
        self._gated = attention.gated
        self._split = [
            attention.num_heads * (1 + attention.gated),
            attention.num_kv_heads,
            attention.num_kv_heads,
        ]
        self._qkv = Projection("qkv", weights, kernels)
        self._o = output_projection("o", weights, kernels, joint)
        self.projections = {"qkv": self._qkv, "o": self._o}
        self._scale, self._window, self._softcap = attention.scale, window, attention.softcap
        self._sinks = weights["sinks.weight"] if attention.sinks else None
        self._norms = self._head_norms = None
        if attention.qk_norm == "projection":
            self._norms = [Norm(spec.norm, name, weights, kernels) for name in ("query_norm", "key_norm")]
        elif attention.qk_norm == "head":
            self._head_norms = _head_norms(spec.norm, weights)

    def __call__(
        self,
        normed: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
        wanted: Wanted | None = None,
    ) -> Tensor:
        """Return [T, hidden_size] for normed [T, hidden_size], or [D, hidden_size] for the tokens that are `wanted`.
        Mutates the cache at the batch's slots, for all."""
        kernels = self._kernels
        heads = self._qkv(normed).view(normed.shape[0], -1, self._head_dim)
        query, key, value = torch.split_with_sizes(heads, self._split, dim=1)  # [T, H or Hkv, D]
        gate: Tensor | None = None
        if self._gated:  # each head's query is followed by its gate
            query, gate = (
                part.contiguous() for part in query.reshape(len(query), -1, 2, self._head_dim).unbind(2)
            )
        if self._norms is not None:
            query, key = (
                norm(part.flatten(1)).view(part.shape)
                for norm, part in zip(self._norms, (query, key), strict=True)
            )
        kernels.rope_and_write_kv(
            query, key, value, self.rotary, positions, *kv_cache, batch.slots, self._head_norms
        )
        if wanted is not None:
            query, batch = query[wanted.tokens], wanted.batch
            gate = None if gate is None else gate[wanted.tokens]
        attended = kernels.paged_attention(
            query, *kv_cache, batch, self._scale, self._window, self._softcap, self._sinks
        )
        for span in batch.spans:
            assert self._window is not None and self._sinks is None, "no model with spans has others"
            attend_span(attended, query, kv_cache, batch, span, self._scale, self._window, self._softcap)
        if gate is not None:
            attended = attended * torch.sigmoid(gate)
        return self._o(attended.flatten(1))


def _head_norms(spec: NormSpec, weights: Weights) -> HeadNorms:
    assert spec.kind != "layer", "no family has layer norms of heads"
    return HeadNorms(
        query=weights["query_norm.weight"],
        key=weights["key_norm.weight"],
        eps=spec.eps,
        wide=spec.kind == "wide_rms",
    )
