"""Counters of an executor's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pageant.actors.executor.step_log import StepLog
from pageant.actors.runtime.histogram import Histogram, from_1_2_5
from pageant.protocol.statistics import ExecutorStatistics, StepRecord
from pageant.protocol.stepping import StepPlan

if TYPE_CHECKING:
    from pageant.actors.executor.options import ExecutorOptions
    from pageant.actors.executor.runners.model_runner import ModelRunner


class Metering:
    """The counts of one executor. Steps may overlap on a device: the time that it is busy counts once."""

    def __init__(self) -> None:
        self._steps = self._rows = self._tokens = 0
        self._busy_seconds = self._ended_at = 0.0
        self._step_tokens = Histogram(from_1_2_5(1, 100_000))
        self._step_seconds = Histogram(from_1_2_5(0.0001, 10))
        self.log = StepLog()
        """The last plans, one by one."""

    def stepped(self, plan: StepPlan, began: float, ended: float, num_steps: int = 1) -> None:
        """Count a plan of so many steps, which were on the device between those times."""
        tokens = int(plan.num_tokens.sum())
        self._steps += num_steps
        self._rows += num_steps * len(plan.rows)
        self._tokens += num_steps * tokens
        self._busy_seconds += max(0.0, ended - max(began, self._ended_at))
        self._ended_at = ended
        for _ in range(num_steps):
            self._step_tokens.observe(tokens)
            self._step_seconds.observe((ended - began) / num_steps)

    def statistics_of(
        self, runner: ModelRunner, options: ExecutorOptions, last_steps: tuple[StepRecord, ...] = ()
    ) -> ExecutorStatistics:
        """Return the counters as of now, with what an executor's runner and options say of the device."""
        return self.statistics(
            device=options.device,
            dtype=runner.dtype,
            kernels=runner.kernels,
            max_model_len=runner.max_model_len,
            num_blocks=runner.num_blocks,
            block_size=options.block_size,
            windows=runner.windows,
            last_steps=last_steps,
            memory_bytes=runner.memory_bytes,
            **runner.preparations,
        )

    def statistics(self, **device: Any) -> ExecutorStatistics:
        """Return the counters as of now, with what is known of the device."""
        return ExecutorStatistics(
            **device,
            busy_seconds=self._busy_seconds,
            steps=self._steps,
            rows=self._rows,
            tokens=self._tokens,
            histograms={
                "iteration_tokens_total": self._step_tokens.statistics(),
                "step_seconds": self._step_seconds.statistics(),
            },
        )
