"""Attention to the rows of an encoder (Vaswani et al., 2017), and the keys and values that are made of them.

They are computed once for a sequence, when its encoder's rows come, and held by its row of the batch: as many blocks of
a cache of their own as hold them all. So the kernels of paged attention read them, with every token at the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.kv_cache import KVLayout
from pageant.models.projection import Projection
from pageant.models.spec import DecoderSpec
from pageant.models.weights import Weights

__all__ = ["Encoded", "EncoderAttention", "EncoderMemory", "Watched"]

_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoders of a step's sequences."""

    rows: Tensor
    """int64 [S]: the rows of the batch of the step's sequences."""
    new: Sequence[tuple[int, Tensor]] = ()
    """Rows of the batch whose keys and values are made before anything else, each with what its encoder made:
    [encoder_rows, hidden_size], in the decoder's dtype."""


@dataclass(frozen=True, eq=False)
class Watched:
    """Tokens of a sequence whose weights of attention to its encoder's rows are kept."""

    tokens: slice
    """Of the step's T."""
    row: int
    """The row of the batch."""
    heads: Sequence[tuple[int, int]]
    """Layers and heads whose weights are kept."""
    weights: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """float32 [tokens, encoder_rows] by layer and head, once the step is computed."""


class EncoderAttention:
    """Attention of one layer to an encoder's rows, from the normalised input to its output projection."""

    def __init__(self, spec: DecoderSpec, weights: Weights, kernels: Kernels) -> None:
        attention = spec.attention
        assert attention.latent is None and not attention.sinks and attention.qk_norm is None, (
            "no family has them"
        )
        self._kernels = kernels
        self._head_dim, self._num_kv_heads, self._scale = (
            attention.head_dim,
            attention.num_kv_heads,
            attention.scale,
        )
        self._query = Projection("encoder_query", weights, kernels)
        self._kv = Projection("encoder_kv", weights, kernels)
        self._o = Projection("encoder_o", weights, kernels)
        self.step: tuple[AttentionBatch, KVCache] | None = None
        """The step at hand, and this layer's cache of encoders' rows; None adds nothing to the stream."""
        self.on_query: Callable[[Tensor], None] | None = None
        """Called with the queries [T, heads, head_dim] of the step at hand."""

    def write(self, rows: Tensor, slots: Tensor, cache: KVCache) -> None:
        """Make keys and values of an encoder's rows [E, hidden_size] and put them in slots, int64 [E], of a cache."""
        heads = self._kv(rows).view(len(rows), 2 * self._num_kv_heads, self._head_dim)
        key, value = torch.split_with_sizes(heads, [self._num_kv_heads] * 2, dim=1)
        self._kernels.write_kv(key, value, *cache, slots)

    def __call__(self, normed: Tensor) -> Tensor:
        """Return [T, hidden_size] for normed [T, hidden_size], of the step at hand."""
        if self.step is None:
            return torch.zeros_like(normed)
        batch, cache = self.step
        query = self._query(normed).view(len(normed), -1, self._head_dim)
        if self.on_query is not None:
            self.on_query(query)
        attended = self._kernels.paged_attention(query, *cache, batch, self._scale, None, None, None)
        return self._o(attended.flatten(1))

    def weights(self, query: Tensor, keys: Tensor, head: int) -> Tensor:
        """Return the weights of one head, float32 [tokens, E], from queries [tokens, heads, head_dim] to keys
        [E, kv_heads, head_dim]."""
        group = query.shape[1] // self._num_kv_heads
        scores = query[:, head].float() @ keys[:, head // group].float().T
        return torch.softmax(scores * self._scale, dim=-1)


class EncoderMemory:
    """Keys and values of encoders' rows in all layers, for each row of the batch.

    Args:
        max_num_seqs: rows of the batch.
    """

    def __init__(
        self, spec: DecoderSpec, dtype: torch.dtype, max_num_seqs: int, device: torch.device
    ) -> None:
        assert spec.encoder_rows is not None, "there is an encoder"
        self._entries = spec.encoder_rows
        blocks = -(-self._entries // _BLOCK)
        layout = KVLayout.of(spec.attention, spec.num_layers, dtype)
        self._caches = layout.allocate(max_num_seqs * blocks, _BLOCK, device)
        self._tables = torch.arange(max_num_seqs * blocks, dtype=torch.int32, device=device).view(-1, blocks)
        self._slots = torch.arange(self._entries, device=device)

    @staticmethod
    def bytes_per_row(spec: DecoderSpec, dtype: torch.dtype) -> int:
        """Return the bytes that one row of the batch takes; 0 for a decoder without an encoder."""
        if spec.encoder_rows is None:
            return 0
        layout = KVLayout.of(spec.attention, spec.num_layers, dtype)
        return layout.bytes_per_block(_BLOCK) * -(-spec.encoder_rows // _BLOCK)

    @contextmanager
    def attending(
        self,
        layers: Sequence[EncoderAttention],
        encoded: Encoded,
        batch: AttentionBatch,
        watched: Sequence[Watched] = (),
    ) -> Iterator[None]:
        """Let the tokens of a step attend to their sequences' encoders within the context. Fills what is watched."""
        for row, rows in encoded.new:
            slots = self._slots + int(self._tables[row, 0]) * _BLOCK
            for layer, cache in zip(layers, self._caches, strict=True):
                layer.write(rows, slots, cache)
        step = self._step(encoded.rows, batch)
        for layer, cache in zip(layers, self._caches, strict=True):
            layer.step = step, cache
        if watched:
            self._watch(layers, watched)
        try:
            yield
        finally:
            for layer in layers:
                layer.step = layer.on_query = None

    def _watch(self, layers: Sequence[EncoderAttention], watched: Sequence[Watched]) -> None:
        """Have each layer keep the weights of its heads that are watched, when it has its queries."""
        for number, (layer, (keys, _)) in enumerate(zip(layers, self._caches, strict=True)):
            wanted = [(one, head) for one in watched for at, head in one.heads if at == number]
            if wanted:
                layer.on_query = partial(self._keep, layer, number, wanted, keys)

    def _keep(
        self,
        layer: EncoderAttention,
        number: int,
        wanted: Sequence[tuple[Watched, int]],
        keys: Tensor,
        query: Tensor,
    ) -> None:
        for one, head in wanted:
            blocks = keys[self._tables[one.row]]  # [blocks, kv_heads, tokens of a block, head_dim]
            of_row = blocks.transpose(1, 2).flatten(0, 1)[: self._entries]
            one.weights[number, head] = layer.weights(query[one.tokens], of_row, head)

    def _step(self, rows: Tensor, batch: AttentionBatch) -> AttentionBatch:
        """Return the layout of a step's tokens for attention to all of their encoders' rows."""
        return AttentionBatch(
            query_starts=batch.query_starts,
            context_lengths=torch.full_like(batch.context_lengths, self._entries),
            block_tables=self._tables[rows],
            slots=batch.slots,
            positions=torch.full_like(batch.positions, self._entries - 1),
            max_query_length=batch.max_query_length,
            max_context_length=self._entries,
        )
