"""Batches that kernels take, and what some of them return. Shapes are written as in `pageant.kernels.base`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

__all__ = [
    "NO_BIASES",
    "UNMASKED",
    "VOID",
    "AttentionBatch",
    "ExpertBiases",
    "HeadNorms",
    "KVCache",
    "Narrowed",
    "NeededLogits",
    "NeededRest",
    "SamplingTensors",
    "Span",
    "StateRows",
    "TokenLogprobs",
    "TokenMasks",
]

KVCache = tuple[Tensor, Tensor]


class Span(NamedTuple):
    """Tokens of one sequence that attend to each other both ways, as those of an image, or its last ones."""

    first: int
    """Of the step's tokens."""
    last: int
    """Behind the last of them."""
    sequence: int
    """Of the step's sequences."""
    end: int
    """Position behind the last of them."""


class StateRows(NamedTuple):
    """Tokens of a step that recurrent layers do not take in at once, or only now: those of drafts.

    All are int64 [S], on the host. A token that may be wrong leaves the states as they were before it. What layers need
    to take it in is kept by row. If it was right, a later step of the row replays it.
    """

    rows: npt.NDArray[np.int64]
    """Row of the batch that each sequence has."""
    replayed: npt.NDArray[np.int64]
    """Tokens before the step's own that are in no state yet: the first so many that were kept for the row."""
    unsure: npt.NDArray[np.int64]
    """Last ones of the step's own tokens that may be wrong."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionBatch:
    """The packed tokens of one step: their sequences, positions and KV slots.

    The T tokens are those of sequence 0, then those of sequence 1, and so on. A new batch is made for each step
    and never written to while in use, since a backend derives once what all layers share, and keeps it in
    `derived`.

    Positions and slots are separate, so that a token's place in memory need not follow its place in the text. A
    token attends over the entries `j` of its sequence's table with `j < context_lengths[s]` and `j <=
    positions[t]`, and with a window also `j > positions[t] - window`.

    A token with `ancestors` belongs to a tree of drafts. Its sequence's n tokens of this step, at most 64, are
    the last n entries of its table, in order. It attends over all entries before those n, with a window only
    over those with `j > positions[t] - window`. Of the n it attends over those that its mask names, with a
    window only where `positions[i] > positions[t] - window`. `positions` are depths in the text, so that
    siblings share one; they are not compared with the indices of entries. A token's own bit is set, or it does
    not attend to itself. A mask that names all tokens up to its own gives causal attention, bit by bit.
    """

    query_starts: Tensor
    """int32 [S+1]: sequence s owns rows query_starts[s]:query_starts[s+1] of the step, maybe none."""
    context_lengths: Tensor
    """int32 [S]: KV entries attended over, this step's own included."""
    block_tables: Tensor
    """int32 [S, max_blocks]: what is past a sequence's last block is never used, whatever it holds."""
    slots: Tensor
    """int64 [T]: where each token's key and value go: block * block_size + offset."""
    positions: Tensor
    """int64 [T]: each token's place in its text, for rotary embedding and causality."""
    max_query_length: int
    max_context_length: int
    ancestors: Tensor | None = None
    """int64 [T]: bit i names its sequence's i-th token of this step. 0, or no masks at all: causal."""
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Scratch of the backend."""
    spans: tuple[Span, ...] = ()
    """Tokens that attend to what follows them; kernels do not know of them (see `attend_span`)."""
    states: StateRows | None = None
    """What recurrent layers need to know; None is a step of tokens that all are sure, and none to be replayed."""
    others: tuple[AttentionBatch, ...] = ()
    """The same step in the other groups of layers, if there are any: with block tables and slots of their own."""

    @property
    def groups(self) -> tuple[AttentionBatch, ...]:
        """Return the step in each layer group."""
        return self, *self.others

    @classmethod
    def of_groups(
        cls,
        block_tables: Tensor | Sequence[Tensor],
        slots: Tensor | Sequence[Tensor],
        *,
        query_starts: Tensor,
        context_lengths: Tensor,
        positions: Tensor,
        max_query_length: int,
        max_context_length: int,
        ancestors: Tensor | None = None,
        states: StateRows | None = None,
    ) -> AttentionBatch:
        """Return a step for G layer groups.

        block_tables: int32 [G, S, max_blocks]. slots: int64 [G, T]. Both may be one tensor or a sequence of G.
        The other arguments are the fields of the class.
        """
        found: tuple[AttentionBatch, ...] = ()
        for group in reversed(range(len(slots))):
            batch = cls(
                query_starts=query_starts,
                context_lengths=context_lengths,
                block_tables=block_tables[group],
                slots=slots[group],
                positions=positions,
                max_query_length=max_query_length,
                max_context_length=max_context_length,
                ancestors=ancestors,
                states=states,
                others=found,
            )
            found = batch, *found
        return found[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadNorms:
    """Root-mean-square norms of all query heads and of all key heads."""

    query: Tensor
    """[D], float32 where `wide`."""
    key: Tensor
    """[D], float32 where `wide`."""
    eps: float
    wide: bool
    """Whether they are `wide_rms_norm`s."""


class ExpertBiases(NamedTuple):
    """Biases of the experts of a mixture, in the dtype of what they are added to; None is none."""

    gate_up: Tensor | None = None
    """[E, 2I]: gate first, then up."""
    down: Tensor | None = None
    """[E, N]."""


NO_BIASES = ExpertBiases()


class TokenMasks(NamedTuple):
    """Masks of the tokens that some rows of logits may sample."""

    rows: Tensor
    """int64 [n]: which rows, each at most once."""
    bits: Tensor
    """int32 [n, V / 32 rounded up]: token t may be drawn if bit t % 32 of [i, t // 32] is 1."""


class NeededLogits(NamedTuple):
    """The logits of a step that will be read, for backends that compute others not at all
    (`RecordingKernels.narrow`).
    """

    which: Tensor
    """int64, as the backend has it."""
    into: Tensor | None = None
    """float32 [R, V]: where they go, beside those that are there already."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SamplingTensors:
    """Sampling parameters of each row. A row's token depends on its own entries and logits alone."""

    temperature: Tensor
    """float32 [R]: below 1e-5 the row is greedy, and every other field is ignored."""
    top_k: Tensor
    """int32 [R]: 0 is off."""
    top_p: Tensor
    """float32 [R]: 1 is off."""
    min_p: Tensor
    """float32 [R]: 0 is off."""
    seed: Tensor
    """int64 [R]: the request's seed, all 64 bits of it."""
    sample: Tensor
    """int32 [R]: which of the request's parallel samples."""
    position: Tensor
    """int64 [R]: the position that the drawn token will have."""
    filters: bool = True
    """Whether any row may have a top_k or a top_p: without, kernels do not look for them."""


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities of each row, float32, before any filter or temperature.

    Tokens are ranked by their logits from 1 on, the lowest id first among equals.
    """

    chosen: Tensor
    """float32 [R]: of the row's own token."""
    ranks: Tensor
    """int32 [R]: that token's rank."""
    top_tokens: Tensor
    """int32 [R, k]: the first k tokens by rank."""
    top: Tensor
    """float32 [R, k]: theirs."""


UNMASKED, VOID = -1, -2
"""Slots in a table of masks: of rows that may sample any token, and of rows that sample none."""


class Narrowed(NamedTuple):
    """The outcome of `narrow`.

    Hidden states [R, N] are in the `order` in which they are needed, int64 [R]: first those whose logits are
    needed whole, which are `needed`. `patience`, int64 [R + 1], is the time to wait for masks then: none where
    no rows are left. `spared`, int64 [1], is the share of all logits that need not be computed with the masks
    in the table, in millionths. `began`, int64 [1], is the time at which all of this was known, in nanoseconds
    of a steady clock.
    """

    hidden: Tensor
    order: Tensor
    needed: NeededLogits
    patience: Tensor
    came: Tensor
    spared: Tensor
    began: Tensor


class NeededRest(NamedTuple):
    """The outcome of `narrow_rest`: the logits that are needed then, and the place of each row, int64 [R].

    `narrow`, int64 [1], is the number of rows that are not needed whole.
    """

    needed: NeededLogits
    places: Tensor
    narrow: Tensor
