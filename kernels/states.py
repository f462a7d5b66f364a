"""States of recurrent layers in memory, and the way of a step's tokens through them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["KeptPlaces", "Page", "Run", "StateBatch", "StateMemory", "Strand"]


class Page(NamedTuple):
    """A part of a layer's state, in all blocks."""

    group: int
    """Which of the groups of states, counted from 0."""
    memory: Tensor
    """uint8 [num_blocks, bytes]. All pages of a layer have as many bytes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StateMemory:
    """States of a gated DeltaNet, in the blocks of all sequences.

    A state is float32 [num_heads, key_dim, value_dim], then the convolution's last inputs [kernel - 1, C]. Its
    bytes go through the pages in order.
    """

    num_key_heads: int
    num_heads: int
    """A multiple of `num_key_heads`: so many neighbours share a key."""
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution reads, the present one included."""
    dtype: torch.dtype
    """Of the convolution's inputs; matrices are float32."""
    pages: tuple[Page, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return how many channels of the convolution are queries, keys and values."""
        keys = self.num_key_heads * self.key_dim
        return keys, keys, self.num_heads * self.value_dim

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return matrices [b, num_heads, key_dim, value_dim] and inputs of the convolution [b, kernel - 1, C].

        blocks: int64 [groups, b], the blocks of b sequences.
        """
        parts = [page.memory[blocks[page.group]] for page in self.pages]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        size, channels = 4 * self.num_heads * self.key_dim * self.value_dim, sum(self.sizes)
        matrices = flat[:, :size].contiguous().view(torch.float32)
        inputs = flat[:, size : size + self.dtype.itemsize * (self.kernel - 1) * channels].contiguous()
        return (
            matrices.view(-1, self.num_heads, self.key_dim, self.value_dim),
            inputs.view(self.dtype).view(-1, self.kernel - 1, channels),
        )

    def write(self, blocks: Tensor, matrices: Tensor, inputs: Tensor) -> None:
        """Write states to blocks int64 [groups, b]; see `read`. Mutates the pages."""
        both = (matrices.flatten(1), inputs.flatten(1).to(self.dtype))
        flat = torch.cat([part.contiguous().view(torch.uint8) for part in both], dim=1)
        first = 0
        for page in self.pages:
            part = flat[:, first : first + page.memory.shape[1]]
            page.memory[blocks[page.group], : part.shape[1]] = part
            first += page.memory.shape[1]


class Run(NamedTuple):
    """Neighbouring tokens of sequences that lie in one block of each: as many of each."""

    tokens: Tensor
    """int64 [b, n], of the step's T, or from T on of those that are replayed."""
    blocks: Tensor | None
    """int64 [groups, b]: where the states after the last of them go; None is nowhere: they may be wrong."""


class Strand(NamedTuple):
    """Sequences that are computed side by side, run after run."""

    blocks: Tensor
    """int64 [groups, b]: where the states are that they begin with."""
    fresh: Tensor
    """bool [b, 1, 1]: sequences at their beginning, whose states are zero."""
    runs: tuple[Run, ...]


class KeptPlaces(NamedTuple):
    """Tokens that are kept for their rows, or were: in the order of each row, from its first place on."""

    rows: Tensor
    """int64 [n], of the batch."""
    places: Tensor
    """int64 [n], within the row."""


@dataclass(frozen=True, eq=False)
class StateBatch:
    """A step's tokens on their way through recurrent layers.

    No sequence begins with the states of a block that another sequence of the step writes to.
    """

    strands: tuple[Strand, ...]
    replayed: KeptPlaces | None = None
    """Tokens of earlier steps that are taken in now. They are counted behind the step's own."""
    unsure: KeptPlaces | None = None
    """Tokens of this step that are to be kept, where there are any."""
    unsure_tokens: Tensor | None = None
    """int64 [n], which of the step's tokens those are."""
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Scratch of the backend: what all layers share."""
