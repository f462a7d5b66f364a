"""EAGLE: a one-layer head on the target's hidden states, which goes on from its own.

At position p of a sequence the head's cache holds what it made of the target's hidden state there and of the token that
follows. So every step gives it as many tokens as the target computes, each shifted by one; what it made of drafts that
were wrong is written over when the right tokens come.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import Packed
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.passes import attention_batch
from pageant.actors.executor.runners.proposers.base import (
    BatchSizes,
    Verified,
    chains,
    hidden_size_of,
    sampled,
)
from pageant.kernels.base import KVCache
from pageant.models.decoder import Decoder
from pageant.models.heads.eagle import EagleHead
from pageant.models.native import NativeDecoder
from pageant.protocol.verification import Drafts

__all__ = ["Eagle"]

Int64 = npt.NDArray[np.int64]


class Eagle:
    """A `Proposer`; see `base`."""

    def __init__(self, path: Path, target: Decoder, max_model_len: int) -> None:
        hidden_size_of(target)
        assert isinstance(target, NativeDecoder), "it has hidden states to show"
        self._head = EagleHead(path, target, max_model_len)
        self.taps = self._head.taps
        self.windows: tuple[int | None, ...] = (None,)
        self._max_model_len = max_model_len

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Proposer`."""
        return self._head.kv_layout.bytes_per_block(block_size)

    def allocate(self, sizes: BatchSizes) -> Sequence[KVCache]:
        """See `Proposer`."""
        caches = self._head.allocate_kv_caches(sizes.num_blocks, sizes.block_size)
        self._cache, self._block_size = caches[0], sizes.block_size
        return caches

    def propose(self, step: Verified) -> Drafts:
        """See `Proposer`."""
        wanted = step.wanted_within(self._block_size, self._max_model_len)
        read = self._head.first_hidden(step.hidden, step.tapped)
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
            drawn = sampled(self._head.target.kernels, self._head.logits(hidden), step, which, ahead + 1)
            rounds.append((which, drawn))
        return chains(wanted, rounds)

    def _forward(self, packed: Packed, token_ids: Tensor, hidden: Tensor) -> Tensor:
        device = hidden.device
        positions = to_device(packed.positions, device)
        return self._head.forward(token_ids, hidden, positions, attention_batch(packed, device), self._cache)

    def _shifted(self, step: Verified) -> Tensor:
        """int64 [T]: the token that follows each of the step's."""
        inputs, proposing = step.inputs, step.proposing
        rows = np.repeat(proposing.rows, np.diff(inputs.query_starts))
        follow = step.history.token_ids[rows, inputs.positions + 1].astype(np.int64)
        follow[inputs.last_tokens] = step.token_ids
        return to_device(np.maximum(follow, 0), step.hidden.device)
