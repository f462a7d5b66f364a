"""One decoder layer: its weights, and what it computes from them. And the rotary table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.spec import DecoderSpec, LinearScaling, Llama3Scaling, RopeSpec

__all__ = ["DecoderLayer", "LayerWeights", "rotary_table"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerWeights:
    """A layer's tensors: shapes are `pageant.models.weights.layer_shapes`. None is "has none"."""

    attention_norm: Tensor
    qkv_weight: Tensor
    o_weight: Tensor
    mlp_norm: Tensor
    gate_up_weight: Tensor
    down_weight: Tensor
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


class DecoderLayer:
    """Attention, then the MLP, each on the normalised sum of all that came before it."""

    def __init__(
        self, spec: DecoderSpec, window: int | None, weights: LayerWeights, kernels: Kernels
    ) -> None:
        self.weights = weights
        self._kernels = kernels
        self._window = window
        self._head_dim = spec.head_dim
        self._split = [spec.query_size, spec.kv_size, spec.kv_size]
        self._scale = spec.head_dim**-0.5
        self._eps = spec.rms_norm_eps

    def forward(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        rotary: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_cache: KVCache,
    ) -> tuple[Tensor, Tensor]:
        """Take and return (hidden, residual), [T, hidden] each, whose sum is the residual stream.

        The sum is left to the next norm, which does it in the same pass. Without a residual, hidden is
        the whole stream (the first layer). Mutates the KV cache at the batch's slots.
        """
        weights, kernels = self.weights, self._kernels
        normed, residual = self._norm(hidden, residual, weights.attention_norm)
        attended = self._attend(normed, rotary, positions, batch, kv_cache)
        hidden = kernels.linear(attended, weights.o_weight, weights.o_bias)
        normed, residual = self._norm(hidden, residual, weights.mlp_norm)
        gate_up = kernels.linear(normed, weights.gate_up_weight, weights.gate_up_bias)
        return kernels.linear(kernels.silu_and_mul(gate_up), weights.down_weight, weights.down_bias), residual

    def _norm(self, hidden: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self._kernels.rms_norm(hidden, weight, self._eps), hidden
        return self._kernels.add_rms_norm(hidden, residual, weight, self._eps)

    def _attend(
        self, normed: Tensor, rotary: Tensor, positions: Tensor, batch: AttentionBatch, kv_cache: KVCache
    ) -> Tensor:
        """Return the attention's output before its projection, [T, H * D]."""
        weights, kernels = self.weights, self._kernels
        qkv = kernels.linear(normed, weights.qkv_weight, weights.qkv_bias)
        query, key, value = (
            part.view(part.shape[0], -1, self._head_dim)
            for part in torch.split_with_sizes(qkv, self._split, dim=-1)
        )  # [T, H, D], [T, Hkv, D], [T, Hkv, D]
        if weights.query_norm is not None and weights.key_norm is not None:
            query = kernels.rms_norm(query, weights.query_norm, self._eps)
            key = kernels.rms_norm(key, weights.key_norm, self._eps)
        kernels.rope(query, key, rotary, positions)
        kernels.write_kv(key, value, *kv_cache, batch.slots)
        return kernels.paged_attention(query, *kv_cache, batch, self._scale, self._window).flatten(1)


def rotary_table(rope: RopeSpec, head_dim: int, num_positions: int, device: torch.device) -> Tensor:
    """Return float32 [num_positions, head_dim]: each position's cosines, then its sines."""
    frequencies = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if isinstance(rope.scaling, LinearScaling):
        frequencies /= rope.scaling.factor
    elif isinstance(rope.scaling, Llama3Scaling):
        frequencies = _llama3_frequencies(frequencies, rope.scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def _llama3_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep frequencies that turned often in the original context, divide those that turned seldom."""
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
