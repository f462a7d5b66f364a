"""Proposers: their interface, and what one is told of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pageant.actors.executor.batch.inputs import Packed, Proposing, StepInputs, pack
from pageant.actors.executor.batch.trees import kept_slots
from pageant.actors.executor.on_device import to_device
from pageant.kernels.base import Kernels, KVCache, SamplingTensors
from pageant.models.decoder import Decoder
from pageant.models.spec import DecoderSpec
from pageant.protocol.arrays import int32
from pageant.protocol.errors import TopologyError
from pageant.protocol.verification import MISSING, Drafts, Verdict

__all__ = ["BatchSizes", "History", "Proposer", "Verified", "chains", "hidden_size_of", "sampled"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of the batch and of the KV cache."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int


class Proposer(Protocol):
    """Guesses what comes next. What it guesses is verified: it cannot make an answer wrong."""

    taps: tuple[int, ...]
    """The target's layers whose inputs it reads, beside the last hidden states."""
    windows: tuple[int | None, ...]
    """Of its own layers that have keys and values; see `Decoder.windows`."""

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block takes in the caches of its own."""

    def allocate(self, sizes: BatchSizes) -> Sequence[KVCache]:
        """Gets ready for batches of that size. Returns caches of its own, of the same blocks as the target's: where
        a sequence has a block there, it has one here; they are copied, saved and restored together."""

    def propose(self, step: Verified) -> Drafts:
        """Return drafts for each of the step's drawing rows, at most as many as are wanted."""


class History:
    """The tokens of all rows, as far as the steps that were computed tell. The batch's own belong to another thread,
    which is a plan ahead."""

    def __init__(self, sizes: BatchSizes) -> None:
        self.token_ids: Int32 = np.zeros((sizes.max_num_seqs, sizes.max_model_len + 1), np.int32)

    def take(self, step: Verified) -> None:
        """Take what a step computed and drew."""
        inputs = step.inputs
        for sequence in step.proposing.new:
            self.token_ids[sequence.row, : len(sequence.token_ids)] = sequence.token_ids
        known = inputs.token_ids >= 0
        rows = np.repeat(step.proposing.rows, np.diff(inputs.query_starts))
        self.token_ids[rows[known], inputs.positions[known]] = inputs.token_ids[known]
        places = step.places[step.token_ids[step.places] != MISSING]
        self.token_ids[inputs.rows[places], inputs.sampling.position[places]] = step.token_ids[places]


@dataclass(frozen=True)
class Verified:
    """A step whose tokens are drawn: D of them, at the places of its N drawing rows."""

    inputs: StepInputs
    hidden: Tensor  # [T, hidden_size]
    tapped: Tensor | None  # [T, taps * hidden_size]
    token_ids: Int64  # [D]
    history: History

    @property
    def proposing(self) -> Proposing:
        """Return which drafts are asked for."""
        assert self.inputs.proposing is not None, "a step without a proposer"
        return self.inputs.proposing

    @cached_property
    def _verdict(self) -> Verdict:
        if self.inputs.verifying is None:
            return Verdict(
                np.zeros(len(self.inputs.rows), np.int32), np.arange(len(self.inputs.rows), dtype=np.int32)
            )
        return self.inputs.verifying.drafts.verify(self.token_ids.astype(np.int32))

    @property
    def places(self) -> Int32:
        """Return those of the D places whose tokens stand."""
        return self._verdict.places

    @cached_property
    def last_places(self) -> Int64:
        """[N]: of the D places, each row's last whose token stands."""
        accepted, places = self._verdict
        return places[np.cumsum(accepted + 1) - 1].astype(np.int64)

    def moved(self) -> tuple[Int64, Int64]:
        """The slots of accepted drafts of trees, and those where they belong: one after another."""
        assert self.inputs.verifying is not None, "a step without drafts"
        accepted, places = self._verdict
        drafts = self.inputs.verifying.drafts.counts
        return kept_slots(self.inputs.slots, self.inputs.last_tokens, drafts, accepted, places)

    @cached_property
    def rows(self) -> Int32:
        """[N], of the batch."""
        return self.inputs.rows[self.last_places]

    @cached_property
    def next_positions(self) -> Int64:
        """[N]: where the last token that was drawn stands."""
        return self.inputs.sampling.position[self.last_places]

    @cached_property
    def next_tokens(self) -> Int64:
        """[N]: that token."""
        return self.token_ids[self.last_places]

    @cached_property
    def last_hidden(self) -> Int64:
        """[N]: of the T tokens, the one after which it was drawn."""
        return self.inputs.last_tokens[self.last_places]

    @cached_property
    def wanted(self) -> Int32:
        """[N]: how many drafts are asked for; none after a token that comes later."""
        if not len(self.proposing.wanted):
            return np.zeros(len(self.next_tokens), np.int32)
        return np.where(self.next_tokens == MISSING, np.int32(0), self.proposing.wanted)

    def one_of_each(self, which: Int64, ahead: int, block_size: int) -> Packed:
        """Return for rows `which` the positions so far ahead of their last drawn tokens; what stands there is yet to
        be said."""
        proposing = self.proposing
        starts = (self.next_positions[which] + ahead).astype(np.int32)
        ones = np.ones(len(which), np.int32)
        tokens = self.history.token_ids
        return pack(self.rows[which], starts, ones, tokens, proposing.block_tables, block_size)

    def wanted_within(self, block_size: int, positions_max: int) -> Int32:
        """The same, as far as there are slots for the last drawn token and all drafts but the last."""
        slots = self.proposing.num_block_groups[self.rows] * block_size
        remaining = np.minimum(slots, positions_max) - self.next_positions
        return np.clip(remaining, 0, self.wanted).astype(np.int32)


def sampled(kernels: Kernels, logits: Tensor, step: Verified, which: Int64, ahead: int) -> Tensor:
    """Draw as the target would, with its noise: int64 [R] for logits [R, V], which are for `ahead` positions after
    the last drawn tokens of the rows `which`."""
    columns, places = step.inputs.sampling, step.last_places[which]
    device = logits.device
    return kernels.sample(
        logits,
        SamplingTensors(
            temperature=to_device(columns.temperature[places], device),
            top_k=to_device(columns.top_k[places], device),
            top_p=to_device(columns.top_p[places], device),
            min_p=to_device(columns.min_p[places], device),
            seed=to_device(columns.seed[places], device),
            sample=to_device(columns.sample[places], device),
            position=to_device(columns.position[places] + ahead, device),
            filters=columns.has_filters,
        ),
    )


def chains(counts: Int32, rounds: Sequence[tuple[Int64, Tensor]]) -> Drafts:
    """Return drafts that were made one after another.

    Args:
        counts: int32 [N], the drafts of each row.
        rounds: for each round, the rows that it was for, int64 [R], and a token of each, int64 [R].
    """
    token_ids = np.zeros(int(counts.sum()), np.int32)
    first = np.cumsum(counts) - counts
    for place, (which, drawn) in enumerate(rounds):
        token_ids[first[which] + place] = drawn.cpu().numpy()
    return Drafts(counts.astype(np.int32), token_ids, int32())


def hidden_size_of(target: Decoder) -> int:
    """The width of a target's hidden states.

    Raises:
        TopologyError: transformers runs it, and shows only what is needed for tokens.
    """
    if not isinstance(target.spec, DecoderSpec):
        raise TopologyError(
            "speculation.method",
            "heads need the hidden states of a model with an architecture of ours; expected ngram or draft",
        )
    return target.spec.hidden_size
