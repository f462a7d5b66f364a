"""A model whose weights are loaded, apart from the KV cache that it computes with.

It outlives the executor that loaded it where the next one in the same process computes with the same weights: after a
sleep in which they were kept, or when they were loaded beside the ones that computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from pageant import kernels
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.kernels.base import Kernels
from pageant.kernels.collectives.local import local_group
from pageant.models.adapters.checkpoint import RANK_MAX
from pageant.models.adapters.loading import Adapters
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.loading import load_decoder
from pageant.models.parking import Parked
from pageant.models.pooling.pooler import Pooler
from pageant.models.quantization import Quantization
from pageant.models.sharding import Shard

__all__ = ["LoadedModel", "ModelKey"]


class ModelKey(NamedTuple):
    """Key of weights in memory: all that they depend on."""

    model: str
    dtype: str
    device: str
    backend: str
    max_model_len: int
    quantization: Quantization | None = None
    deterministic: bool = False
    max_lora_rank: int = RANK_MAX
    weight_version: str = ""
    shard: Shard | None = None
    """The share of the weights; None is all of them, whose sums are taken at once."""
    head_quantization: Quantization | None = None

    @classmethod
    def of(cls, config: RunnerConfig) -> ModelKey:
        """Return the key of the weights that a runner of this configuration computes with."""
        return cls(
            *(str(config.model), config.dtype, config.device, config.backend, config.max_model_len),
            *(config.quantization, config.deterministic, config.max_lora_rank, config.weight_version),
            *(config.shard, config.head_quantization),
        )


class LoadedModel:
    """The weights of a decoder and of its adapters, with the kernels that they lie right for.

    Args:
        key: what to load.
        adapters: their folders, by key.
        progress: see `load_decoder`.

    Raises:
        CheckpointError: the checkpoint or an adapter cannot be computed.
    """

    def __init__(
        self,
        key: ModelKey,
        adapters: Mapping[str, str],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.key = key
        self.device = torch.device(key.device)
        self.kernels: Kernels = kernels.load(key.backend, key.device, deterministic=key.deterministic)
        checkpoint = Checkpoint(Path(key.model))
        self.decoder: Decoder = load_decoder(
            checkpoint,
            key.dtype,
            self.device,
            kernels=self.kernels,
            max_model_len=key.max_model_len,
            quantization=key.quantization,
            head_quantization=key.head_quantization,
            progress=progress,
            shard=key.shard,
        )
        if key.shard is not None and key.shard.is_joint and key.shard.ranks == 1:
            self.decoder.join(local_group(1)[0])
        self.adapters = Adapters(adapters, checkpoint, self.decoder, key.max_lora_rank)
        pooling = checkpoint.pooling
        self.pooler = None if pooling is None else Pooler(pooling, self.device)
        self._parked: Parked | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, wherever they are."""
        of_pooler = 0 if self.pooler is None else self.pooler.num_bytes
        return self.decoder.num_bytes + self.adapters.num_bytes + of_pooler

    def let_go(self) -> None:
        """Forget whatever of the last steps is still referred to, such as the KV cache."""
        self.decoder.forget()

    def park(self) -> None:
        """Keep the weights in the host's memory alone. On a CPU that is where they are."""
        if self.device.type != "cpu" and self._parked is None:
            self._parked = Parked([*self.decoder.tensors(), *self.adapters.tensors()])

    def unpark(self) -> None:
        """Bring parked weights back to the device."""
        if self._parked is not None:
            self._parked.restore()
            self._parked = None

    def have_adapters(self, wanted: Mapping[str, str]) -> None:
        """Load adapters that are missing, and forget others.

        Raises:
            CheckpointError: one of them cannot be loaded.
        """
        for key in [key for key in self.adapters if key not in wanted]:
            self.adapters.remove(key)
        for key, folder in wanted.items():
            if key not in self.adapters:
                self.adapters.add(key, folder)
