"""What every decoder offers: token ids in, hidden states and logits out, with the KV cache in pages.

There are two: `NativeDecoder`, put together from a specification, and `FallbackDecoder`, which runs
transformers' own modelling code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache
from pageant.models.spec import ModelSpec

__all__ = ["Decoder"]


class Decoder(Protocol):
    """A model on one device. Call it under `torch.inference_mode`."""

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    taps: tuple[int, ...]
    """The layers whose inputs `forward` leaves in `tapped`; none at first."""
    tapped: Tensor | None
    """[T, len(taps) * hidden_size], of the last forward pass."""

    @property
    def spec(self) -> ModelSpec:
        """The sizes that the engine needs to know."""
        ...

    def forward(
        self, token_ids: Tensor, positions: Tensor, batch: AttentionBatch, kv_caches: Sequence[KVCache]
    ) -> Tensor:
        """Return [T, hidden_size], after the final norm, for token_ids and positions int64 [T].

        Positions are below the spec's max_model_len. Mutates each layer's cache at the batch's slots.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [R, vocab_size] for rows of hidden states [R, hidden_size]."""
        ...

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """The shape of one layer's keys, and of its values."""
        ...

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block takes in all layers together, keys and values."""
        ...

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Return zeroed caches, one (keys, values) per layer. On a CPU, memory is taken as it is used."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that the weights take."""
        ...
