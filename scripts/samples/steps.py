"""Steps of sequences of given lengths, as the executor computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pageant.actors.executor.batch.inputs import UNKNOWN, SamplingColumns, StepInputs, Verifying
from pageant.actors.executor.batch.shaping import NOTHING
from pageant.protocol.verification import Drafts

BLOCK = 16
"""Tokens of a KV block."""


def step_inputs(lengths: Sequence[tuple[int, int]], *, draws_after_each: bool = False) -> StepInputs:
    """Return the step of sequences of (new tokens, context), which draws after the last token of each.

    The last token of a decode is one that the step before drew.

    Args:
        draws_after_each: draw after every token: those behind the first of each sequence are drafts to verify.
    """
    counts, contexts = (np.array(column, np.int32) for column in zip(*lengths, strict=True))
    rows, tokens = len(lengths), int(counts.sum())
    widths = -(-contexts // BLOCK)
    tables = np.zeros((rows, widths.max()), np.int32)
    first_blocks = np.concatenate(([0], widths.cumsum()[:-1]))
    for row, (width, block) in enumerate(zip(widths, first_blocks, strict=True)):
        tables[row, :width] = block + np.arange(width)
    owners = np.repeat(np.arange(rows), counts)
    starts = np.concatenate(([0], counts.cumsum())).astype(np.int32)
    positions = (np.arange(tokens) - starts[owners] + (contexts - counts)[owners]).astype(np.int64)
    unknown = starts[:-1][counts == 1].astype(np.int64)
    token_ids = np.zeros(tokens, np.int64)
    token_ids[unknown] = UNKNOWN
    last = np.arange(tokens) if draws_after_each else (starts[1:] - 1).astype(np.int64)
    drawing = owners[last].astype(np.int32)
    verifying = None
    if draws_after_each:
        drafts = Drafts(counts - 1, np.zeros(tokens - rows, np.int32), np.zeros(0, np.int32))
        verifying = Verifying(np.arange(rows, dtype=np.int32), contexts.astype(np.int64), drafts)
    floats, ints = np.zeros(len(last), np.float32), np.zeros(len(last), np.int32)
    columns = SamplingColumns(
        floats, ints, floats + 1, floats, drawing.astype(np.int64), ints, positions[last] + 1, NOTHING
    )
    return StepInputs(
        token_ids=token_ids,
        unknown=unknown,
        unknown_rows=owners[unknown].astype(np.int64),
        positions=positions,
        slots=(tables[owners, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK)[None],
        query_starts=starts,
        context_lengths=contexts,
        block_tables=tables[None],
        max_query_length=int(counts.max()),
        max_context_length=int(contexts.max()),
        last_tokens=last.astype(np.int64),
        rows=drawing,
        tenures=drawing.astype(np.int64),
        sampling=columns,
        scores=None,
        copy_sources=ints[:0],
        copy_destinations=ints[:0],
        verifying=verifying,
    )
