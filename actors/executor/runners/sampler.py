"""Sampling of a step: from logits to tokens, with masks, logits processors and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import SamplingColumns, StepInputs
from pageant.actors.executor.batch.processors import Processing, process_logits
from pageant.actors.executor.batch.scoring import Scored, Scoring
from pageant.actors.executor.batch.shaping import NOTHING, shape_logits
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.sampled_tokens import SampledTokens, sampled_tokens
from pageant.actors.executor.runners.step_logits import PendingLogits, StepLogits
from pageant.kernels.base import Kernels, SamplingTensors, TokenMasks

__all__ = ["Sampler", "sampling_tensors"]

AfterDraw = Callable[[SampledTokens, StepInputs, Tensor], SampledTokens]
"""Adds drafts to the tokens of a step, given its hidden states [T, hidden_size]."""


class Sampler:
    """Samples the tokens of steps on one device.

    Args:
        last_drawn: int64 [rows of the batch], on the device, mutated: the token that each row drew last.
        after_draw: called with the tokens of each step whose hidden states are given.
    """

    def __init__(self, kernels: Kernels, last_drawn: Tensor, after_draw: AfterDraw) -> None:
        self._kernels, self._last_drawn, self._after_draw = kernels, last_drawn, after_draw
        self._device = last_drawn.device

    def draw_or_wait(
        self,
        logits: Tensor,
        rows: Tensor,
        params: SamplingTensors,
        inputs: StepInputs,
        prompts: Scoring | None = None,
        hidden: Tensor | None = None,
        waited: float = 0.0,
    ) -> SampledTokens | PendingLogits:
        """Return the tokens that are drawn from logits, float32 [D, V]; without them, if a mask is missing.

        Args:
            logits: mutated.
            rows: int64 [D], of the batch.
            hidden: the step's hidden states [T, N], for drafts that follow; None where there are none.
            waited: seconds, for masks.
        """
        scores, guided = inputs.scores, inputs.guided
        scored = scores.drawn if scores is not None else None
        raw = logits[self._tensor(scored.places)] if scored is not None else None
        shaped = inputs.sampling.shaping is not NOTHING or inputs.processing is not None
        unshaped = logits[self._tensor(guided.places)] if guided is not None and shaped else None
        shape_logits(logits, inputs.sampling.shaping)
        failed = process_logits(logits, inputs.processing)
        if raw is not None and scored is not None and inputs.processing is not None:
            _score_by_rules(raw, logits, scored, inputs.processing)
        step = StepLogits(
            logits=logits,
            params=params,
            rows=rows,
            failed=failed,
            raw=raw,
            scored=scored,
            prompts=prompts,
            computed=None if hidden is None else (inputs, hidden),
        )
        if guided is None:
            return self._followed(self._draw(step, step.failed), step)
        places = np.arange(len(inputs.rows))
        pending = PendingLogits(places=places, guided=guided, of_step=step, unshaped=unshaped, waited=waited)
        late = guided.late
        return pending if len(late) else self.draw(pending, late)

    def draw(self, pending: PendingLogits, late: npt.NDArray[np.int64]) -> SampledTokens:
        """Draw tokens with the masks that have come, but for the places that are late, int64 [L]."""
        guided, step = pending.guided, pending.of_step
        deferred = guided.deferred if len(late) else late
        kept = pending.part(deferred) if len(deferred) else None
        masks = self._masks(pending)
        drawn = self._draw(step, {**guided.failures(), **step.failed}, masks)
        drawn.missing, drawn.late, drawn.pooling = late, kept, pending.pooling
        return self._followed(drawn, step)

    def _masks(self, pending: PendingLogits) -> TokenMasks | None:
        """Return what grammars allow. Where a request's other bans would leave nothing of that, grammars prevail."""
        places, bits = pending.guided.present()
        if not len(places):
            return None
        rows, masks = self._tensor(places), self._tensor(bits)
        if pending.unshaped is None:
            return TokenMasks(rows, masks)
        logits = pending.of_step.logits
        self._kernels.mask_logits(logits, rows, masks)
        dead = (logits[rows].amax(-1) == float("-inf")).nonzero()[:, 0]
        if len(dead):
            guided = self._tensor(np.searchsorted(pending.guided.places, places))
            logits[rows[dead]] = pending.unshaped[guided[dead]]
            self._kernels.mask_logits(logits, rows[dead], masks[dead])
        return None

    def _followed(self, drawn: SampledTokens, step: StepLogits) -> SampledTokens:
        return drawn if step.computed is None else self._after_draw(drawn, *step.computed)

    def _draw(
        self, step: StepLogits, failed: dict[int, str], masks: TokenMasks | None = None
    ) -> SampledTokens:
        tokens = self._kernels.sample(step.logits, step.params, masks)
        if self._device.type == "cpu":
            # numpy takes a tenth of the time that torch takes.
            self._last_drawn.numpy()[step.rows.numpy()] = tokens.numpy()
        else:
            self._last_drawn[step.rows] = tokens
        scoring = None
        if step.raw is not None and step.scored is not None:
            scoring = Scoring(step.scored)
            scoring.add(self._kernels, step.raw, tokens[self._tensor(step.scored.places)])
        return sampled_tokens(tokens, scoring, step.prompts, failed)

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return to_device(array, self._device)


def _score_by_rules(raw: Tensor, logits: Tensor, scored: Scored, processing: Processing) -> None:
    """Let texts that are heard be scored among the tokens that their rules allow, as Whisper's are.

    raw: float32 [N, vocab_size], of the scored places, mutated. logits: float32 [D, vocab_size].
    """
    places = [
        place
        for _, some, rows in processing.work
        for place, row in zip(some, rows, strict=True)
        if row.speech
    ]
    heard = np.flatnonzero(np.isin(scored.places, places))
    if len(heard):
        raw[to_device(heard, raw.device)] = logits[to_device(scored.places[heard], raw.device)]


def sampling_tensors(sampling: SamplingColumns, device: torch.device) -> SamplingTensors:
    """Return the sampling parameters of a step's D drawing rows, on the device."""
    return SamplingTensors(
        temperature=to_device(sampling.temperature, device),
        top_k=to_device(sampling.top_k, device),
        top_p=to_device(sampling.top_p, device),
        min_p=to_device(sampling.min_p, device),
        seed=to_device(sampling.seed, device),
        sample=to_device(sampling.sample, device),
        position=to_device(sampling.position, device),
        filters=sampling.has_filters,
    )
