"""States of recurrent layers in memory, and the way of a step's tokens through them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pageant.kernels.strands import StateArrays, Strand, strands_of

__all__ = ["KeptPlaces", "Page", "StateBatch", "StateMemory"]


class Page(NamedTuple):
    """A part of a layer's state, in all blocks."""

    group: int
    """Which of the groups of states, counted from 0."""
    memory: Tensor
    """uint8 [num_blocks, bytes]. All pages of a layer have as many bytes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StateMemory:
    """States of a recurrent layer, in the blocks of all sequences.

    A state is float32 [num_heads, key_dim, value_dim], then the convolution's last inputs [kernel - 1, num_channels].
    Its bytes go through the pages in order.
    """

    num_heads: int
    """Heads that have a matrix; 0 where there is a convolution alone."""
    key_dim: int
    value_dim: int
    num_channels: int
    """Channels of the convolution: of queries, keys and values in some order, or of nothing else."""
    kernel: int
    """Tokens that the convolution reads, the present one included."""
    dtype: torch.dtype
    """Of the convolution's inputs; matrices are float32."""
    pages: tuple[Page, ...]
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Scratch of the backend: what all steps share."""

    @property
    def num_key_heads(self) -> int:
        """Return how many heads of keys, and of queries, there are: `num_heads` is a multiple of it."""
        return (self.num_channels - self.num_heads * self.value_dim) // (2 * self.key_dim)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return how many channels of the convolution are queries, keys and values."""
        keys = self.num_key_heads * self.key_dim
        return keys, keys, self.num_heads * self.value_dim

    @property
    def _matrix_bytes(self) -> int:
        return 4 * self.num_heads * self.key_dim * self.value_dim

    def _flat(self, blocks: Tensor) -> Tensor:
        """Return whole pages, uint8 [b, bytes]. blocks: see `read`."""
        parts = [page.memory[blocks[page.group]] for page in self.pages]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return matrices [b, num_heads, key_dim, value_dim] and inputs of the convolution [b, kernel - 1, C].

        blocks: int64 [groups, b], the blocks of b sequences.
        """
        flat, size = self._flat(blocks), self._matrix_bytes
        matrices = flat[:, :size].contiguous().view(torch.float32)
        count = self.dtype.itemsize * (self.kernel - 1) * self.num_channels
        inputs = flat[:, size : size + count].contiguous()
        return (
            matrices.view(len(flat), self.num_heads, self.key_dim, self.value_dim),
            inputs.view(self.dtype).view(len(flat), self.kernel - 1, self.num_channels),
        )

    def write(self, blocks: Tensor, matrices: Tensor, inputs: Tensor) -> None:
        """Write states to blocks int64 [groups, b]; see `read`. Mutates the pages."""
        both = (matrices.flatten(1), inputs.flatten(1).to(self.dtype))
        flat = torch.cat([part.contiguous().view(torch.uint8) for part in both], dim=1)
        self._write_bytes(blocks, flat, 0)

    def write_matrices(self, blocks: Tensor, matrices: Tensor) -> None:
        """Write the matrices of states alone; see `write`."""
        self._write_bytes(blocks, matrices.flatten(1).contiguous().view(torch.uint8), 0)

    def write_inputs(self, blocks: Tensor, inputs: Tensor) -> None:
        """Write the convolution's inputs of states alone; see `write`."""
        flat = inputs.flatten(1).to(self.dtype).contiguous().view(torch.uint8)
        self._write_bytes(blocks, flat, self._matrix_bytes)

    def _write_bytes(self, blocks: Tensor, flat: Tensor, first: int) -> None:
        """Write uint8 [b, n] to states, from their byte `first` on."""
        begin, last = 0, first + flat.shape[1]
        for page in self.pages:
            size = page.memory.shape[1]
            start, stop = max(first, begin), min(last, begin + size)
            if start < stop:
                page.memory[blocks[page.group], start - begin : stop - begin] = flat[
                    :, start - first : stop - first
                ]
            begin += size


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

    arrays: StateArrays
    replayed: KeptPlaces | None = None
    """Tokens of earlier steps that are taken in now. They are counted behind the step's own."""
    unsure: KeptPlaces | None = None
    """Tokens of this step that are to be kept, where there are any."""
    unsure_tokens: Tensor | None = None
    """int64 [n], which of the step's tokens those are."""
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Scratch of the backend: what all layers share."""

    @cached_property
    def strands(self) -> tuple[Strand, ...]:
        """Return which tokens go side by side; see `strands_of`, which waits for the device."""
        return strands_of(self.arrays)
