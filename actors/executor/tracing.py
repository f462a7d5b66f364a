"""Spans of steps, for the requests whose every step is told of."""

from __future__ import annotations

from collections.abc import Iterator

from pageant.actors.runtime.tracing import Tracer
from pageant.protocol.stepping import StepPlan
from pageant.protocol.tracing import Attribute, Span, TraceContext


class StepTracing:
    """Traced rows of the batch, plan by plan."""

    def __init__(self) -> None:
        self._rows: dict[int, TraceContext] = {}

    def clear(self) -> None:
        """The batch is empty."""
        self._rows.clear()

    def apply(self, plan: StepPlan) -> dict[int, TraceContext]:
        """Takes in a plan, and returns the rows that it computes something of and that are traced."""
        if self._rows:
            for row in plan.freed_rows.tolist():
                self._rows.pop(row, None)
        for new in plan.new:
            if new.trace is not None and (context := TraceContext.parse(new.trace)) is not None:
                self._rows[new.row] = context
        if not self._rows:
            return {}
        return {row: self._rows[row] for row in plan.rows.tolist() if row in self._rows}


def step_spans(
    tracer: Tracer, plan: StepPlan, traces: dict[int, TraceContext], began: float, ended: float
) -> Iterator[Span]:
    """A step that was on the device between those times, as a part of each of the requests."""
    facts: dict[str, Attribute] = {
        "pageant.step": plan.number,
        "pageant.rows": len(plan.rows),
        "pageant.tokens": int(plan.num_tokens.sum()),
    }
    tokens = dict(zip(plan.rows.tolist(), plan.num_tokens.tolist(), strict=True))
    for row, context in traces.items():
        own = {"pageant.request_tokens": tokens[row]}
        yield tracer.part("step", context, began, ended, attributes=facts | own)
