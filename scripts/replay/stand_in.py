"""An executor that says what was said, and takes as long as was taken: the simulator's, over a recording.

A request names its output by its seed, which stands for its number in the recording. One that ended before it had all
the tokens that it might have had ends at `END`, in the place of its last token: no scheduler is told before how long an
answer will be. Beyond what was recorded of a request, tokens are the simulator's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import SamplingColumns, StepInputs
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.executor.simulated_runner import SimulatedRunner, UInt64
from pageant.scripts.replay.costs import StepSize
from pageant.scripts.replay.load import END, Load, read_load

if TYPE_CHECKING:
    from pageant.actors.executor.instructions import Launch
    from pageant.actors.executor.runners.model_runner import ModelRunner
from pageant.actors.executor.work import Launched, Work


class RecordedExecutor(SimulatedExecutor):
    """The real shell and batch, over a `RecordedRunner`."""

    class Options(SimulatedExecutor.Options, frozen=True, kw_only=True):
        """Options of `SimulatedExecutor`, with the `recording`, and the `replica` of its models that is replayed."""

        recording: str
        replica: str = ""

    def open_runner(self) -> ModelRunner:
        options = self.options
        load = read_load(Path(options.recording), options.replica)
        self._costs, self._luck = load.costs, load.costs.luck()
        self._seconds: deque[float] = deque()  # of the steps that were given to the device
        self._free_at = 0.0
        return RecordedRunner(load, options)

    async def _launch(self, order: Launch) -> None:
        """Keep the device busy with steps one after another, each for as long as one of its size was."""
        size = _size(order.work.steps[0])
        seconds = self._costs.expected(size) * self._costs.factor(size, next(self._luck))
        self._seconds.append(seconds)
        self._free_at = max(self._free_at, self.clock.now()) + seconds
        await asyncio.sleep(self._free_at - self.clock.now())
        await super()._launch(order)

    def _compute(self, work: Work) -> Launched | None:
        seconds, outcome = self._seconds.popleft(), super()._compute(work)
        return None if outcome is None else outcome._replace(began=outcome.began - seconds)


def _size(inputs: StepInputs) -> StepSize:
    rows = len(inputs.context_lengths)
    return StepSize(tokens=len(inputs.positions), rows=rows, context=int(inputs.context_lengths.sum()))


class RecordedRunner(SimulatedRunner):
    """Draws what was drawn."""

    def __init__(self, load: Load, options: SimulatedExecutor.Options) -> None:
        super().__init__(options, ready=True)
        self.proposer = None
        outputs = [np.array(course.token_ids, np.int64) for course in load.courses]
        self._counts = np.array([len(tokens) for tokens in outputs])
        self._starts = np.cumsum(self._counts) - self._counts
        self._prompts = np.array([course.num_prompt_tokens for course in load.courses])
        self._tokens = np.concatenate([*outputs, np.zeros(1, np.int64)])
        stopped = np.array([course.stopped for course in load.courses])
        self._ends = np.where(stopped, np.maximum(self._counts, 1) - 1, -1)

    def drawn(self, seen: UInt64, sampling: SamplingColumns) -> npt.NDArray[np.int64]:
        """Return the recorded tokens, int64 [rows], and those of the simulated model where none was recorded.

        seen: uint64 [rows], the prefixes' digests.
        """
        request = sampling.seed
        place = sampling.position - self._prompts[request]
        known = place < self._counts[request]
        recorded = self._tokens[np.where(known, self._starts[request] + place, -1)]
        tokens = np.where(known, recorded, super().drawn(seen, sampling))
        return np.where(place == self._ends[request], END, tokens)
