"""One step, by columns: what is asked of the block manager, and from its grants the executor's plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.running import Chunks
from pageant.protocol.allocation import Admission, Admitted, Assign, Assigned
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32, int64
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.protocol.verification import Drafts

V = TypeVar("V", Int32Vector, Int64Vector)


@dataclass(frozen=True)
class Drawn:
    """Tokens that were drawn, one for each of these requests."""

    serials: Int64Vector
    token_ids: Int32Vector


@dataclass(frozen=True)
class Withdrawn:
    """Of these requests, no more than so many tokens have been computed."""

    serials: Int64Vector
    lengths: Int32Vector


@dataclass
class News:
    """What the block manager is to be told with the next exchange: first what was not computed, then what was drawn,
    then what is given up."""

    drawn: list[Drawn] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)  # serials of sequences
    withdrawn: list[Withdrawn] = field(default_factory=list)

    def take(self) -> News:
        """All of it, once."""
        news = News(self.drawn, self.freed, self.withdrawn)
        self.clear()
        return news

    def clear(self) -> None:
        """There is nothing to be told."""
        self.drawn, self.freed, self.withdrawn = [], [], []


@dataclass(frozen=True)
class Exchange:
    """What a step has asked of the block manager."""

    step: int
    growing: Chunks
    admitting: list[ScheduledRequest]
    continues: bool = False  # see `StepPlan`


class Computing(NamedTuple):
    """A step that the executor has the plan of."""

    step: int
    plan: int
    chunks: Chunks
    drafts: Drafts
    continues: bool = False  # see `StepPlan`

    @property
    def may_stop_short(self) -> bool:
        """Whether fewer steps may be computed than it says."""
        return self.chunks.num_steps > 1 or self.continues


def admissions(requests: Sequence[ScheduledRequest], granted: Sequence[Admitted]) -> Chunks:
    """What is computed of requests that have just been admitted."""
    ends = [grant.num_cached_tokens + grant.num_tokens for grant in granted]
    return Chunks.of(
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
    chunks: Chunks,
    new: Sequence[ScheduledRequest],
    drafts: Drafts,
    wanted: Int32Vector,
    *,
    continues: bool = False,
) -> StepPlan:
    """The plan of one step.

    Args:
        chunks: what is computed; the first `granted.num_grown` are of requests that were in the batch.
        new: the requests that take a row, in the order of `granted.admitted`.
        drafts: of the chunks.
        wanted: how many the executor is to propose for each chunk that draws, or none at all.
        continues: see `StepPlan`.
    """
    return StepPlan(
        number=number,
        epoch=granted.epoch,
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
                embedded=request.embedded(grant.num_cached_tokens),
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
    news: News,
    *,
    computed_step: int,
    budget: int,
    chunk_max: int,
    long_chunk_max: int,
) -> Assign:
    """What a step asks of the block manager.

    Args:
        lengths: how many tokens each growing one is to have slots for.
        budget: tokens that admissions may compute, all together.
        chunk_max, long_chunk_max: how many any sequence may compute, and how many a long prompt.
    """
    growing, admitting = exchange.growing, exchange.admitting
    serials = _joined([one.serials for one in news.drawn], int64())
    ahead = lengths - growing.starts - growing.lengths
    return Assign(
        step=exchange.step,
        epoch=epoch,
        computed_step=computed_step,
        learned_serials=serials,
        learned_counts=np.ones(len(serials), np.int32),
        token_ids=_joined([one.token_ids for one in news.drawn], int32()),
        freed=int64(news.freed),
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
            )
            for request in admitting
        ),
        admission_tokens=max(0, budget),
        manager=manager,
        chunk_max=chunk_max,
        withdrawn_serials=_joined([one.serials for one in news.withdrawn], int64()),
        withdrawn_lengths=_joined([one.lengths for one in news.withdrawn], int32()),
    )


def _joined(parts: list[V], none: V) -> V:
    return np.concatenate(parts) if parts else none
