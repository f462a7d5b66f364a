"""The logits of a step that waits for its masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from pageant.actors.executor.batch.scoring import Scored, Scoring
from pageant.actors.executor.guided.undrawn import Int64, Undrawn
from pageant.actors.executor.on_device import to_device
from pageant.kernels.base import SamplingTensors
from pageant.kernels.sampling import select_rows

if TYPE_CHECKING:
    from pageant.actors.executor.batch.inputs import StepInputs

__all__ = ["UndrawnLogits"]


@dataclass(frozen=True, kw_only=True)
class UndrawnLogits(Undrawn):
    """The logits [D, V] of the rows.

    `raw` are those of the rows whose log-probabilities are asked for, `unshaped` those of the guided rows, if anything
    shaped them: a grammar comes before all that.
    """

    logits: Tensor
    params: SamplingTensors
    rows: Tensor  # [D], of the batch
    failed: dict[int, str]
    raw: Tensor | None
    scored: Scored | None
    unshaped: Tensor | None
    prompts: Scoring | None
    computed: tuple[StepInputs, Tensor] | None = None
    """The step and its hidden states, for drafts that follow; none for rows that are drawn alone."""

    def part(self, places: Int64) -> UndrawnLogits:
        """See `Undrawn`."""
        some = to_device(places, self.logits.device)
        raw, scored = None, None
        if self.scored is not None and self.raw is not None:
            kept, scored = self.scored.part(places)
            raw = self.raw[to_device(kept, self.raw.device)]
            scored = scored if len(kept) else None
        unshaped = None
        if self.unshaped is not None:
            kept = np.flatnonzero(np.isin(self.guided.places, places))
            unshaped = self.unshaped[to_device(kept, self.unshaped.device)]
        return UndrawnLogits(
            logits=self.logits[some],
            params=select_rows(self.params, some),
            rows=self.rows[some],
            places=self.places[places],
            guided=self.guided.part(places),
            failed={},
            raw=raw,
            scored=scored,
            unshaped=unshaped,
            prompts=None,
        )
