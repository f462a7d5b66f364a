"""Weights that one life of an executor leaves for the next in the same process. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pageant.actors.executor.options import ExecutorOptions

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel

__all__ = ["KeptWeights"]


@dataclass(frozen=True)
class KeptWeights:
    """Weights that are meant for the next life to compute with."""

    model: LoadedModel

    def is_of(self, options: ExecutorOptions) -> bool:
        """Return whether an executor of these options computes with them."""
        key = self.model.key
        return (key.model, key.weight_version) == (options.model, options.weight_version)
