"""Drafts of a decoder layer on the target's hidden states, which goes on from its own: EAGLE's head, or a checkpoint's
own layer (multi-token prediction).

At position p of a sequence the layer's cache holds what it made of the target's hidden state there and of the token
that follows. So every step gives it as many tokens as the target computes, each shifted by one; what it made of drafts
that were wrong is written over when the right tokens come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import Packed
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.passes import attention_batch
from pageant.actors.executor.runners.proposers.base import BatchSizes, Verified, chains, sampled
from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.kv_cache import KVLayout
from pageant.protocol.verification import Drafts

__all__ = ["DraftLayer", "LayerProposer"]

Int64 = npt.NDArray[np.int64]


class DraftLayer(Protocol):
    """A decoder layer that drafts, with one KV cache."""

    kernels: Kernels
    taps: tuple[int, ...]
    """See `Proposer`."""

    @property
    def kv_layout(self) -> KVLayout:
        """Return the sizes of its KV cache."""
        ...

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Return its one cache, zeroed."""
        ...

    def first_hidden(self, hidden: Tensor, tapped: Tensor | None) -> Tensor:
        """Return what it reads of the target: [T, hidden_size], in the target's dtype, for hidden states [T,
        hidden_size] and the inputs of tapped layers [T, taps * hidden_size]."""
        ...

    def advance(
        self, token_ids: Tensor, hidden: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        """Return hidden states [T, hidden_size], given those before each token, in the target's dtype.

        token_ids, positions: int64 [T]. Mutates the cache at the batch's slots.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [R, the target's vocab_size] for its hidden states [R, hidden_size]."""
        ...


class LayerProposer:
    """A `Proposer`; see `base`."""

    def __init__(self, layer: DraftLayer, max_model_len: int) -> None:
        self._layer = layer
        self.taps = layer.taps
        self.windows: tuple[int | None, ...] = (None,)
        self._max_model_len = max_model_len

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Proposer`."""
        return self._layer.kv_layout.bytes_per_block(block_size)

    def allocate(self, sizes: BatchSizes) -> Sequence[KVCache]:
        """See `Proposer`."""
        caches = self._layer.allocate_kv_caches(sizes.num_blocks, sizes.block_size)
        self._cache, self._block_size = caches[0], sizes.block_size
        return caches

    def propose(self, step: Verified) -> Drafts:
        """See `Proposer`."""
        wanted = step.wanted_within(self._block_size, self._max_model_len)
        read = self._layer.first_hidden(step.hidden, step.tapped)
        hidden = self._forward(step.inputs, self._shifted(step), read)
        rounds: list[tuple[Int64, Tensor]] = []
        drawn = torch.empty(0, dtype=torch.int64)
        for ahead in range(int(wanted.max(initial=0))):
            which = np.flatnonzero(wanted > ahead)
            if ahead:
                kept = to_device(np.flatnonzero(wanted[rounds[-1][0]] > ahead), hidden.device)
                before = step.one_of_each(which, ahead - 1, self._block_size)
                hidden = self._forward(before, drawn[kept], hidden[kept])
            else:
                hidden = hidden[to_device(step.last_hidden[which], hidden.device)]
            drawn = sampled(self._layer.kernels, self._layer.logits(hidden), step, which, ahead + 1)
            rounds.append((which, drawn))
        return chains(wanted, rounds)

    def _forward(self, packed: Packed, token_ids: Tensor, hidden: Tensor) -> Tensor:
        device = hidden.device
        positions = to_device(packed.positions, device)
        return self._layer.advance(token_ids, hidden, positions, attention_batch(packed, device), self._cache)

    def _shifted(self, step: Verified) -> Tensor:
        """int64 [T]: the token that follows each of the step's."""
        inputs, proposing = step.inputs, step.proposing
        rows = np.repeat(proposing.rows, np.diff(inputs.query_starts))
        follow = step.history.token_ids[rows, inputs.positions + 1].astype(np.int64)
        follow[inputs.last_tokens] = step.token_ids
        return to_device(np.maximum(follow, 0), step.hidden.device)
