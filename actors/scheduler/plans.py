"""One step, by columns: what is asked of the block manager, and from its grants the executor's plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.allocation import Admission, Assign, Assigned
from pageant.protocol.arrays import bools, int32, int64
from pageant.protocol.stepping import NewSequence, StepPlan


class Chunk(NamedTuple):
    """`length` tokens of a request, from `start`, in one step; if it `draws`, they are its last."""

    request: ScheduledRequest
    start: int
    length: int
    draws: bool


@dataclass(frozen=True)
class Exchange:
    """What a step has asked of the block manager."""

    step: int
    growing: list[Chunk]
    admitting: list[ScheduledRequest]


class Computing(NamedTuple):
    """A step that the executor has the plan of."""

    step: int
    plan: int
    chunks: list[Chunk]


class Freed(NamedTuple):
    """A sequence that is given up, and those of its tokens that the block manager has not been told of."""

    serial: int
    fresh: list[int]


def build_plan(
    number: int,
    granted: Assigned,
    freed_rows: Sequence[int],
    chunks: Sequence[Chunk],
    new: Sequence[ScheduledRequest],
) -> StepPlan:
    """The plan of one step.

    Args:
        chunks: what is computed; the first `granted.num_grown` are of requests that were in the batch.
        new: the requests that take a row, in the order of `granted.admitted`.
    """
    rows = int32([chunk.request.row for chunk in chunks])
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
            )
            for request, grant in zip(new, granted.admitted, strict=True)
        ),
        grown_rows=rows[: granted.num_grown].copy(),
        grown_counts=granted.grown_counts,
        grown_blocks=granted.grown_blocks,
        copy_sources=granted.copy_sources,
        copy_destinations=granted.copy_destinations,
        rows=rows,
        starts=int32([chunk.start for chunk in chunks]),
        num_tokens=int32([chunk.length for chunk in chunks]),
        draws=bools([chunk.draws for chunk in chunks]),
    )


def choose_running(running: Sequence[ScheduledRequest], budget: int, chunk_max: int) -> list[Chunk]:
    """Chunks of the running requests: one token for each that decodes, then prefills in order.

    They are in the policy's order, so that memory goes to whom it favours. Those of long prompts have at most
    `chunk_max` tokens.
    """
    uncomputed = [request.num_uncomputed for request in running]
    for_decodes = min(uncomputed.count(1), budget)
    for_prefills = budget - for_decodes
    chunks = []
    for request, count in zip(running, uncomputed, strict=True):
        if count == 1:
            length = min(1, for_decodes)
            for_decodes -= length
        else:
            length = min(count, for_prefills, chunk_max if request.is_long else count)
            for_prefills -= length
        if length:
            chunks.append(Chunk(request, request.num_computed, length, draws=length == count))
    return chunks


def build_assign(
    exchange: Exchange,
    epoch: int,
    manager: int,
    freed: Sequence[Freed],
    computed_step: int,
    budget: int,
    chunk_max: int,
) -> Assign:
    """What a step asks of the block manager. Marks the tokens that it tells it of as reported.

    Args:
        budget: tokens that admissions may compute, all together.
        chunk_max: how many of them a long prompt may compute.
    """
    growing, admitting = exchange.growing, exchange.admitting
    learned = [(one.serial, one.fresh) for one in freed if one.fresh]
    for request in (chunk.request for chunk in growing):
        fresh = request.take_fresh()
        if fresh:
            learned.append((request.serial, fresh))
    for request in admitting:
        request.num_reported = len(request.output)
    return Assign(
        step=exchange.step,
        epoch=epoch,
        computed_step=computed_step,
        learned_serials=int64([serial for serial, _ in learned]),
        learned_counts=int32([len(fresh) for _, fresh in learned]),
        token_ids=int32([token for _, fresh in learned for token in fresh]),
        freed=int64([one.serial for one in freed]),
        grow_serials=int64([chunk.request.serial for chunk in growing]),
        grow_lengths=int32([chunk.start + chunk.length for chunk in growing]),
        admissions=tuple(
            Admission(
                serial=request.serial,
                token_ids=request.token_ids(),
                salt=request.salt,
                num_tokens_max=chunk_max if request.is_long else None,
                skip_cache=request.skips_cache,
            )
            for request in admitting
        ),
        admission_tokens=max(0, budget),
        manager=manager,
    )
