"""Inputs of a step: its tokens, packed, and what is done after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.pooled import PooledStep
from pageant.actors.executor.batch.processors import Processing
from pageant.actors.executor.batch.recurrent import StateTokens
from pageant.actors.executor.batch.scoring import Scores
from pageant.actors.executor.batch.shaping import NOTHING, Shaping
from pageant.actors.executor.guided.masks import GuidedStep
from pageant.protocol.stepping import NewSequence
from pageant.protocol.verification import Drafts, spread, within

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

UNKNOWN = -1  # a token that is not known yet, where it will stand


@dataclass(frozen=True)
class SamplingColumns:
    """Sampling parameters of the step's D drawing rows, by columns."""

    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: Int64
    sample: Int32
    position: Int64
    shaping: Shaping

    @property
    def has_filters(self) -> bool:
        """Tell whether any row has a top_k or a top_p."""
        return bool(self.top_k.any()) or bool((self.top_p < 1).any())


@dataclass(frozen=True)
class Packed:
    """T tokens of S sequences, one after another, in each of G groups of layers. See `kernels.base.AttentionBatch`."""

    token_ids: Int64  # [T], UNKNOWN where the step before draws it
    unknown: Int64  # [U], of the T tokens: those
    unknown_rows: Int64  # [U], the rows of the batch whose last drawn tokens they are
    positions: Int64  # [T]
    slots: Int64  # [G, T]
    query_starts: Int32  # [S+1]
    context_lengths: Int32  # [S]
    block_tables: Int32  # [G, S, blocks of the longest]
    max_query_length: int
    max_context_length: int
    states: StateTokens | None = None  # where layers are recurrent


@dataclass(frozen=True, kw_only=True)
class StepInputs(Packed):
    """One step, with what is done after its tokens are computed."""

    last_tokens: Int64  # [D], of the T tokens: those after which one is drawn
    rows: Int32  # [D], their rows of the batch
    tenures: Int64  # [D], how many sequences these rows have had
    sampling: SamplingColumns
    scores: Scores | None  # whose log-probabilities are asked for
    copy_sources: Int32  # [C], blocks to be copied before anything else
    copy_destinations: Int32  # [C]
    processing: Processing | None = None  # by logits processors of the user's own
    verifying: Verifying | None = None
    ancestors: Int64 | None = None  # [T], where there are trees of drafts
    proposing: Proposing | None = None
    guided: GuidedStep | None = None  # whose tokens a grammar allows
    blind: frozenset[int] = frozenset()  # rows that are to draw by tokens of which the last is not known
    adapted: tuple[AdaptedTokens, ...] = ()  # of those that have adapters
    embedded: tuple[EmbeddedTokens, ...] = ()  # of those that have embeddings of their own
    rotary: Int64 | None = None  # [3, T], where they are not the positions: see `RotaryRows`
    encoded: EncodedStep | None = None  # of sequences that attend to what an encoder made
    pooled: PooledStep | None = None  # of those whose hidden states are pooled, and which draw nothing
    failing: Mapping[int, str] = field(
        default_factory=dict
    )  # of the D places, those whose tokens are errors, and why

    @property
    def reads_all(self) -> bool:
        """Tell whether hidden states are read of tokens after which none is drawn, or of several of a sequence."""
        scored = self.scores is not None and self.scores.prompt is not None
        return scored or self.verifying is not None or self.proposing is not None

    @property
    def draws_after_each(self) -> bool:
        """Tell whether a token is drawn after each token, which the model alone computes, and no prompt is scored."""
        return (
            len(self.last_tokens) == len(self.positions)
            and self.ancestors is None
            and not self.adapted
            and not self.embedded
            and self.rotary is None
            and self.encoded is None
            and self.pooled is None
            and (self.scores is None or self.scores.prompt is None)
        )

    @property
    def only_draws(self) -> bool:
        """Tell whether tokens are drawn after each, from logits as they are but for masks, and nothing else is done."""
        return (
            self.draws_after_each
            and self.sampling.shaping is NOTHING
            and self.scores is None
            and self.processing is None
            and not len(self.copy_sources)
        )

    def voided(self, places: Sequence[int]) -> StepInputs:
        """Return the same step, whose rows at some of the D places are computed without the token before."""
        if self.states is None:
            return self
        tokens = self.last_tokens[list(places)]
        sequences = self.query_starts.searchsorted(tokens, side="right") - 1
        return replace(self, states=self.states.voided(sequences, self.query_starts))


class EmbeddedTokens(NamedTuple):
    """Tokens of one sequence, among the step's T, that have embeddings of their own."""

    tokens: Int64  # [n]
    rows: Float32  # [n, width]: see `PromptEmbeds`
    are_images: bool = False  # and not all of a prompt: those next to each other are an image, or its end


class EncodedStep(NamedTuple):
    """Outputs of encoders, to which all tokens of their sequences attend."""

    rows: Int32  # [S], the rows of the batch of the step's sequences
    new: tuple[
        tuple[int, Float32], ...
    ]  # rows that come for the first time, each with [n, hidden_size] of its encoder


class AdaptedTokens(NamedTuple):
    """Tokens of the step's T that are computed with an adapter."""

    adapter: str
    tokens: Int64  # [n]


@dataclass(frozen=True)
class Verifying:
    """The drafts of the N rows that draw: each row with drafts has that many more of the step's D places."""

    rows: Int32  # [N]
    starts: Int64  # [N], the positions of the first token that each draws
    drafts: Drafts


@dataclass(frozen=True)
class Proposing:
    """Tells the executor's own proposer of a step, and of all rows of the batch as they were when it was packed."""

    wanted: Int32  # [N], drafts for each of the rows that draw, or [0] for none
    rows: Int32  # [S], of the step's sequences
    starts: Int32  # [S]
    draws: npt.NDArray[np.bool_]  # [S]
    new: tuple[NewSequence, ...]
    block_tables: Int32  # [rows, block groups, groups of layers]
    num_block_groups: Int32  # [rows]


def pack(
    rows: Int32, starts: Int32, counts: Int32, token_ids: Int32, block_tables: Int32, block_size: int
) -> Packed:
    """`counts[i]` tokens of row `rows[i]` from position `starts[i]`, where each stands where its position says.

    Args:
        token_ids: [rows of the batch, positions]
        block_tables: [rows of the batch, block groups, groups of layers]
    """
    token_rows = spread(rows, counts)
    positions = (spread(starts, counts) + within(counts)).astype(np.int64)
    blocks = block_tables[token_rows, positions // block_size].T.astype(np.int64)
    found = token_ids[token_rows, positions].astype(np.int64)
    unknown = np.flatnonzero(found == UNKNOWN)
    context_lengths = starts + counts
    longest = int(context_lengths.max())
    return Packed(
        token_ids=found,
        unknown=unknown,
        unknown_rows=token_rows[unknown].astype(np.int64),
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        query_starts=np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)]),
        context_lengths=context_lengths,
        block_tables=np.ascontiguousarray(block_tables[rows, : -(-longest // block_size)].transpose(2, 0, 1)),
        max_query_length=int(counts.max()),
        max_context_length=longest,
    )
