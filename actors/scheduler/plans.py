"""A step by columns: the request to the block manager, and the executor's plan made from its grants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.protocol.allocation import Admission, Admitted, Assign, Assigned
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32, int64
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.protocol.verification import Drafts

V = TypeVar("V", Int32Vector, Int64Vector)


@dataclass(frozen=True)
class SampledTokens:
    """Sampled tokens, `each` of them for each request. serials: int64 [N].

    token_ids: int32 [N * each], request by request.
    """

    serials: Int64Vector
    token_ids: Int32Vector
    each: int = 1


@dataclass(frozen=True)
class Withdrawn:
    """Tokens that were granted and not computed. serials: int64 [N]. lengths: int32 [N], the most computed
    tokens of each.
    """

    serials: Int64Vector
    lengths: Int32Vector


@dataclass
class BlockUpdates:
    """Updates for the block manager, sent with the next exchange.

    The manager applies them in this order: withdrawn tokens, sampled tokens, freed sequences.
    """

    sampled: list[SampledTokens] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    """Serials of sequences whose blocks are freed."""
    withdrawn: list[Withdrawn] = field(default_factory=list)

    def take(self) -> BlockUpdates:
        """Return all updates, once."""
        updates = BlockUpdates(self.sampled, self.freed, self.withdrawn)
        self.clear()
        return updates

    def clear(self) -> None:
        """Drop all updates."""
        self.sampled, self.freed, self.withdrawn = [], [], []


@dataclass(frozen=True)
class Exchange:
    """The request of a step to the block manager."""

    step: int
    growing: ScheduledRows
    admitting: list[ScheduledRequest]
    continues: bool = False
    """See `StepPlan`."""


class Computing(NamedTuple):
    """A step whose plan the executor has. `continues` is as in `StepPlan`."""

    step: int
    plan: int
    chunks: ScheduledRows
    drafts: Drafts
    continues: bool = False  # see `StepPlan`

    @property
    def may_end_early(self) -> bool:
        """Tell whether fewer steps may be computed than the plan has."""
        return self.chunks.num_steps > 1 or self.continues


def admissions(requests: Sequence[ScheduledRequest], granted: Sequence[Admitted]) -> ScheduledRows:
    """Return the scheduled rows of requests that have just been admitted."""
    ends = [grant.num_cached_tokens + grant.num_tokens for grant in granted]
    return ScheduledRows.of(
        serials=[request.serial for request in requests],
        rows=[request.held_row for request in requests],
        starts=[grant.num_cached_tokens for grant in granted],
        lengths=[grant.num_tokens for grant in granted],
        draws=[end == request.num_tokens for end, request in zip(ends, requests, strict=True)],
    )


def build_plan(
    number: int,
    granted: Assigned,
    freed_rows: Sequence[int],
    chunks: ScheduledRows,
    new: Sequence[ScheduledRequest],
    drafts: Drafts,
    wanted: Int32Vector,
    *,
    continues: bool = False,
) -> StepPlan:
    """Return the plan of one step.

    Args:
        chunks: the scheduled rows; the first `granted.num_grown` are of requests that were in the batch.
        new: the requests that take a row, in the order of `granted.admitted`.
        drafts: the drafts of the scheduled rows.
        wanted: int32 [sampling rows]: the drafts that the executor proposes for each, or empty for none.
        continues: see `StepPlan`.
    """
    return StepPlan(
        number=number,
        epoch=granted.epoch,
        exchange=granted.step,
        freed_rows=int32(freed_rows),
        new=tuple(
            NewSequence(
                row=request.held_row,
                token_ids=request.token_ids(),
                num_prompt_tokens=len(request.prompt),
                blocks=grant.blocks,
                params=request.params,
                sample=request.sample,
                bad_words=request.bad_words,
                trace=request.trace,
                adapter=request.adapter,
                thinking=request.thinking,
                speech=request.speech,
                embedded=request.embedded(grant.num_cached_tokens),
                pooling=request.pooling,
            )
            for request, grant in zip(new, granted.admitted, strict=True)
        ),
        grown_rows=chunks.rows[: granted.num_grown].copy(),
        grown_counts=granted.grown_counts,
        grown_blocks=granted.grown_blocks,
        copy_sources=granted.copy_sources,
        copy_destinations=granted.copy_destinations,
        rows=chunks.rows,
        starts=chunks.starts,
        num_tokens=chunks.lengths if chunks.num_steps == 1 else np.ones_like(chunks.lengths),
        draws=chunks.draws,
        moves=granted.moves,
        draft_counts=drafts.counts,
        draft_ids=drafts.token_ids,
        draft_parents=drafts.parents,
        wanted=wanted,
        num_steps=chunks.num_steps,
        continues=continues,
    )


def build_assign(
    exchange: Exchange,
    lengths: Int32Vector,
    epoch: int,
    manager: int,
    updates: BlockUpdates,
    *,
    computed_step: int,
    budget: int,
    chunk_max: int,
    long_chunk_max: int,
) -> Assign:
    """Return a step's request to the block manager.

    Args:
        lengths: int32 [growing rows]: the number of tokens that each is to have slots for.
        budget: tokens that all admissions together may compute.
        chunk_max, long_chunk_max: the most tokens that any sequence computes, and that a long prompt computes.
    """
    growing, admitting = exchange.growing, exchange.admitting
    serials = _joined([one.serials for one in updates.sampled], int64())
    counts = _joined([np.full(len(one.serials), one.each, np.int32) for one in updates.sampled], int32())
    ahead = lengths - growing.starts - growing.lengths
    return Assign(
        step=exchange.step,
        epoch=epoch,
        computed_step=computed_step,
        learned_serials=serials,
        learned_counts=counts,
        token_ids=_joined([one.token_ids for one in updates.sampled], int32()),
        freed=int64(updates.freed),
        grow_serials=growing.serials,
        grow_lengths=lengths,
        grow_drafts=ahead if ahead.any() else int32(),
        admissions=tuple(
            Admission(
                serial=request.serial,
                token_ids=request.token_ids(),
                salt=request.salt,
                extra_keys=request.extra_keys,
                num_tokens_max=long_chunk_max if request.is_long else None,
                skip_cache=request.skips_cache,
                adapter=request.adapter,
                is_again=request.was_admitted,
                embed_names=None if request.prompt_embeds is None else request.prompt_embeds.names,
                embed_places=None if request.prompt_embeds is None else request.prompt_embeds.places,
                embed_whole=request.prompt_embeds is not None and request.prompt_embeds.whole,
            )
            for request in admitting
        ),
        admission_tokens=max(0, budget),
        manager=manager,
        chunk_max=chunk_max,
        withdrawn_serials=_joined([one.serials for one in updates.withdrawn], int64()),
        withdrawn_lengths=_joined([one.lengths for one in updates.withdrawn], int32()),
    )


def _joined(parts: list[V], none: V) -> V:
    return np.concatenate(parts) if parts else none
