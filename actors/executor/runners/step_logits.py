"""The logits of a step, with all that its sample depends on; those that wait for their masks among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from pageant.actors.executor.batch.scoring import Scored, Scoring
from pageant.actors.executor.guided.pending_sample import Int64, PendingSample
from pageant.actors.executor.on_device import to_device
from pageant.kernels.base import SamplingTensors
from pageant.kernels.sampling import select_rows

if TYPE_CHECKING:
    from pageant.actors.executor.batch.inputs import StepInputs

__all__ = ["PendingLogits", "StepLogits"]


@dataclass(frozen=True, kw_only=True)
class StepLogits:
    """Logits of D rows, shaped by what their requests ask for, but not masked yet."""

    logits: Tensor
    """float32 [D, vocab_size], mutated by masks."""
    params: SamplingTensors
    rows: Tensor
    """int64 [D], rows of the batch."""
    failed: dict[int, str]
    """Why some rows have no right token, by their places."""
    raw: Tensor | None
    """The unshaped logits of rows whose log-probabilities are asked for."""
    scored: Scored | None
    prompts: Scoring | None
    """Log-probabilities of prompts that the step computed."""
    computed: tuple[StepInputs, Tensor] | None = None
    """The step and its hidden states, for drafts that follow; None for rows that are drawn alone."""

    def part(self, places: Int64) -> StepLogits:
        """Return the logits of some of the D rows, int64 [n], in memory of their own."""
        some = to_device(places, self.logits.device)
        raw, scored = None, None
        if self.scored is not None and self.raw is not None:
            kept, scored = self.scored.part(places)
            raw = self.raw[to_device(kept, self.raw.device)]
            scored = scored if len(kept) else None
        return StepLogits(
            logits=self.logits[some],
            params=select_rows(self.params, some),
            rows=self.rows[some],
            failed={},
            raw=raw,
            scored=scored,
            prompts=None,
        )


@dataclass(frozen=True, kw_only=True)
class PendingLogits(PendingSample):
    """Logits of a step some of whose rows wait for their masks."""

    of_step: StepLogits
    unshaped: Tensor | None
    """The unshaped logits of the guided rows, if anything shaped them: a grammar comes before all that."""

    def part(self, places: Int64) -> PendingLogits:
        """See `PendingSample`."""
        unshaped = None
        if self.unshaped is not None:
            kept = np.flatnonzero(np.isin(self.guided.places, places))
            unshaped = self.unshaped[to_device(kept, self.unshaped.device)]
        return PendingLogits(
            of_step=self.of_step.part(places),
            places=self.places[places],
            guided=self.guided.part(places),
            unshaped=unshaped,
        )
