"""A step between its forward pass and its draw, where it waits for its masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.masks import GuidedStep
from pageant.actors.executor.scoring import Scored, Scoring

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.actors.executor.inputs import StepInputs
    from pageant.kernels.base import SamplingTensors

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Undrawn:
    """What a runner keeps of D drawing rows, some of which are guided, all else done that comes before the draw."""

    places: Int64  # [D], among the drawing rows of their step
    guided: GuidedStep
    waited: float = 0.0  # seconds that masks have been waited for

    def part(self, places: Int64) -> Undrawn:
        """Some of the D rows, in memory of their own."""
        raise NotImplementedError


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
        from pageant.actors.executor.on_device import to_device
        from pageant.kernels.sampling import select_rows

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
