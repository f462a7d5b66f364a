"""Interface of every decoder: token ids in, hidden states and logits out, with the KV cache in pages.

There are two: `NativeDecoder`, put together from a specification, and `FallbackDecoder`, which runs
transformers' own modelling code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, Kernels, KVCache, NeededLogits, Span
from pageant.kernels.collectives.base import Collectives
from pageant.kernels.collectives.stage_links import StageLinks
from pageant.kernels.tiled import LinearWeight
from pageant.models.kv_cache import KVLayout
from pageant.models.layer_groups import LayerGroups
from pageant.models.recurrent_states import RecurrentStates
from pageant.models.spec import ModelSpec

__all__ = ["Decoder", "Embedded", "Wanted"]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Rows that stand in for the embeddings of some of a step's tokens, as transformers takes `inputs_embeds`."""

    tokens: Tensor
    """int64 [n], of the step's T."""
    rows: Tensor
    """[n, width], in the decoder's dtype. Behind the first hidden_size columns are those that are added to what the
    first layers leave, layer by layer (deepstack)."""

    images: tuple[Span, ...] = ()
    """Those of the tokens that attend to each other both ways."""

    def add_after(self, layer: int, hidden: Tensor) -> None:
        """Add to hidden, float [T, hidden_size], what belongs there after a layer, if anything does. Mutates it."""
        size = hidden.shape[1]
        first = (layer + 1) * size
        if first < self.rows.shape[1]:
            hidden[self.tokens] += self.rows[:, first : first + size]


@dataclass(frozen=True, eq=False)
class Wanted:
    """Tokens of a step whose hidden states somebody reads.

    Of the others, the last layer need only write keys and values.
    """

    tokens: Tensor
    """int64 [D], of the step's T."""
    batch: AttentionBatch
    """Of those alone, one to a sequence."""

    @classmethod
    def of(cls, tokens: Tensor, sequences: Tensor, batch: AttentionBatch) -> Wanted:
        """Tokens int64 [D] of a step, and the sequences of theirs int64 [D], each another one; causal ones."""
        some = AttentionBatch(
            query_starts=torch.arange(len(tokens) + 1, dtype=torch.int32, device=tokens.device),
            context_lengths=batch.context_lengths[sequences],
            block_tables=batch.block_tables[sequences],
            slots=batch.slots[tokens],
            positions=batch.positions[tokens],
            max_query_length=1,
            max_context_length=batch.max_context_length,
        )
        return cls(tokens, some)


class Decoder(Protocol):
    """A model on one device. Call it under `torch.inference_mode`."""

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    taps: tuple[int, ...]
    """The layers whose inputs `forward` leaves in `tapped`; none at first."""
    tapped: Tensor | None
    """[T, len(taps) * hidden_size], of the last forward pass."""
    groups: LayerGroups
    """The layers of the whole model that share blocks; one group of all at first."""
    kv_dtype: torch.dtype
    """Of the KV caches that `allocate_kv_caches` returns; `dtype` at first."""

    states: RecurrentStates | None
    """The states of recurrent layers; None where no layer is."""

    @property
    def spec(self) -> ModelSpec:
        """The sizes that the engine needs to know."""
        ...

    @property
    def head(self) -> LinearWeight | None:
        """[vocab_size, hidden_size], where logits are the product with it and no more."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return how many tokens each layer of the whole model attends over, the present one included; None is all."""
        ...

    def join(self, collectives: Collectives, links: StageLinks | None = None) -> None:
        """Compute with the other ranks of a group from now on; for a decoder of a rank's share of the weights.

        All ranks then call `forward` and `logits` in the same order, with the same arguments. The logits of all ranks
        come together on rank 0; on others, `logits` returns a part that nobody needs.

        Args:
            collectives: of the ranks of this rank's stage.
            links: to the stages before and after, where there are several. Stages but the last return of `forward`
                and `logits` what nobody needs.
        """
        ...

    def pass_over(self, num_tokens: int) -> None:
        """Take what the stage before left of a step of so many tokens, which is not computed here."""
        ...

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[KVCache],
        wanted: Wanted | None = None,
        embedded: Embedded | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """Return [T, hidden_size], after the final norm, for token_ids and positions int64 [T]; of the tokens that are
        `wanted`, if that is given, [D, hidden_size]. Where rotations have sections, positions may be int64 [3, T], by
        time, height and width. Some tokens may be `embedded` otherwise than by their ids.
        `token_types`, int64 [T], are read by models that have such, and are 0 without.

        Positions are below the spec's max_model_len. Mutates each layer's cache at its group's slots in the batch;
        `wanted` is of the last layer's group.
        """
        ...

    def logits(self, hidden: Tensor, needed: NeededLogits | None = None) -> Tensor:
        """Return float32 [R, vocab_size] for rows of hidden states [R, hidden_size]; see `Kernels.logits`."""
        ...

    @property
    def kv_layout(self) -> KVLayout:
        """Sizes of the KV cache of one group's layers, which is in `kv_dtype`."""
        ...

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block takes in the layers of a group together, keys and values."""
        ...

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """Return zeroed caches, one (keys, values) per layer of a group: layers of different groups share one, in
        which no block is of both. On a CPU, memory is taken as it is used."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that the weights take."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of the weights, [...] of any dtype. Some may share memory."""
        ...

    def forget(self) -> None:
        """Let go of what the last forward pass was given and left, such as KV caches."""
        ...
