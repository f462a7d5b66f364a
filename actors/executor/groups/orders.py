"""Orders: what a leader's launches are to the other members of its group, and back. Knows no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import AdaptedTokens, EmbeddedTokens, Packed, StepInputs
from pageant.actors.executor.work import Work
from pageant.protocol.arrays import int64
from pageant.protocol.ranks import Order, RankStep, TokensAdapted, TokensEmbedded

__all__ = ["given_embeddings", "order_of", "packed_of", "with_adapters"]

Int64 = npt.NDArray[np.int64]


def order_of(work: Work, token_ids: Int64 | None = None) -> Order:
    """Return the order of a launch. Its arrays are copies: the leader's may still change.

    Args:
        token_ids: int64 [T], of a launch of one step, if they go with the order.
    """
    known = int64() if token_ids is None else token_ids
    return Order(number=work.number, steps=tuple(_rank_step(inputs, known) for inputs in work.steps))


def _rank_step(inputs: StepInputs, token_ids: Int64) -> RankStep:
    prompt = None if inputs.scores is None else inputs.scores.prompt
    return RankStep(
        positions=_flat(inputs.positions),
        slots=_flat(inputs.slots),
        query_starts=_flat(inputs.query_starts),
        context_lengths=_flat(inputs.context_lengths),
        block_tables=_flat(inputs.block_tables),
        last_tokens=_flat(inputs.last_tokens),
        reads_all=inputs.reads_all,
        scored=_flat(int64() if prompt is None else prompt.places),
        copy_sources=_flat(inputs.copy_sources),
        copy_destinations=_flat(inputs.copy_destinations),
        ancestors=int64() if inputs.ancestors is None else int64(inputs.ancestors),
        adapted=tuple(TokensAdapted(adapter=one.adapter, tokens=_flat(one.tokens)) for one in inputs.adapted),
        embedded_tokens=tuple(
            TokensEmbedded(tokens=_flat(one.tokens), rows=one.rows.copy()) for one in inputs.embedded
        ),
        token_ids=_flat(token_ids),
    )


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return array.astype(np.int32).reshape(-1)


def packed_of(step: RankStep, token_ids: Int64, num_groups: int) -> Packed:
    """Return the packed tokens of a step, whose ids int64 [T] the leader has said."""
    sequences = len(step.context_lengths)
    return Packed(
        token_ids=token_ids,
        unknown=int64(),
        unknown_rows=int64(),
        positions=step.positions.astype(np.int64),
        slots=step.slots.astype(np.int64).reshape(num_groups, -1),
        query_starts=step.query_starts.copy(),
        context_lengths=step.context_lengths.copy(),
        block_tables=step.block_tables.copy().reshape(num_groups, sequences, -1),
        max_query_length=int(np.diff(step.query_starts).max()),
        max_context_length=int(step.context_lengths.max()),
    )


def with_adapters(step: RankStep) -> tuple[AdaptedTokens, ...]:
    """Return those of a step's tokens that are computed with adapters."""
    return tuple(AdaptedTokens(one.adapter, one.tokens.astype(np.int64)) for one in step.adapted)


def given_embeddings(step: RankStep) -> tuple[EmbeddedTokens, ...]:
    """Return those of a step's tokens that have embeddings of their own."""
    return tuple(EmbeddedTokens(one.tokens.astype(np.int64), one.rows.copy()) for one in step.embedded_tokens)
