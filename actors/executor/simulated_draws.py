"""Draws of a simulated runner: those that wait for masks, their tokens, log-probabilities and pooled results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.batch.scoring import Scored
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.model_runner import KnownTokens
from pageant.actors.executor.simulated_model import logprob_of
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.pooling import PooledRows, join_pooled

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

TOP_MAX = 20


@dataclass(frozen=True, kw_only=True)
class SimulatedPendingSample(PendingSample):
    """D drawing rows, with the scores of the S that are not drawn by their noise alone."""

    rows: npt.NDArray[np.int32]  # [D]
    seen: UInt64  # [D]
    token_ids: Int64  # [D], of those that nothing shapes
    shaped: Int64  # [S], of the D: those that something does
    scores: Float32  # [S, V]
    scored: Scored | None
    prompts: Logprobs | None = None
    inputs: StepInputs | None = None  # for drafts that follow; none for rows that are drawn alone

    def part(self, places: Int64) -> SimulatedPendingSample:
        """See `PendingSample`."""
        some = np.isin(self.shaped, places)
        return SimulatedPendingSample(
            places=self.places[places],
            guided=self.guided.part(places),
            rows=self.rows[places],
            seen=self.seen[places],
            token_ids=self.token_ids[places],
            shaped=np.searchsorted(places, self.shaped[some]),
            scores=self.scores[some],
            scored=None if self.scored is None else self.scored.part(places)[1],
        )


class SimulatedDraw(KnownTokens):
    """Tokens that are on their way for a while, on a device that is no CPU."""

    def __init__(
        self, token_ids: Int64, drawn: Logprobs | None, prompts: Logprobs | None, ready: bool
    ) -> None:
        super().__init__(token_ids, drawn, prompts)
        self.ready = ready


class SimulatedPooling(NamedTuple):
    """See `model_runner.PooledResults`."""

    places: Int64  # [P]
    vectors: Float32  # [P, width]

    def columns(self) -> PooledRows | None:
        """See `model_runner.PooledResults`."""
        return join_pooled(zip(self.places.tolist(), self.vectors[:, None], strict=True))


def logprob_columns(scored: Scored, seen: UInt64, token_ids: Int64) -> Logprobs:
    """Return log-probabilities of tokens, int64 [D], by what was seen before them, uint64 [D].

    The token itself is always the likeliest here, then those after it. Listed tokens are as they would be drawn.
    """
    counts = np.minimum(np.where(scored.counts < 0, TOP_MAX, scored.counts), TOP_MAX).astype(np.int32)
    owners = np.repeat(np.arange(len(token_ids)), counts)
    ahead = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    logprobs = logprob_of(seen, token_ids)
    top_ids, top = token_ids[owners] + ahead, logprobs[owners] - ahead
    if scored.listed:
        rows = np.split(np.arange(len(owners)), np.cumsum(counts)[:-1])
        own = [scored.listed.get(index, top_ids[rows[index]]) for index in range(len(counts))]
        of = [np.full(len(ids), seen[index]) for index, ids in enumerate(own)]
        found = [
            logprob_of(of[index], ids) if index in scored.listed else top[rows[index]]
            for index, ids in enumerate(own)
        ]
        counts = np.array([len(ids) for ids in own], np.int32)
        top_ids, top = np.concatenate(own), np.concatenate(found)
    return Logprobs(
        rows=scored.rows,
        token_ids=token_ids.astype(np.int32),
        logprobs=logprobs,
        ranks=np.ones(len(token_ids), np.int32),
        counts=counts,
        top_ids=top_ids.astype(np.int32),
        top=top.astype(np.float32),
    )
