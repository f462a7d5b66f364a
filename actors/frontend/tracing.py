"""The spans of a request as its frontend sees it: the whole of it, and how each of its sequences spent the time.

Names of attributes are OpenTelemetry's for generative models where it has any, else vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pageant.actors.runtime.tracing import Tracer
from pageant.protocol.serving import Finished
from pageant.protocol.tracing import Attribute, Span, TraceContext

if TYPE_CHECKING:
    from pageant.actors.frontend.requests import OpenRequest


@dataclass(eq=False)
class RequestTrace:
    """What is noted of a request that is traced until it ends."""

    context: TraceContext
    parent_id: str | None
    num_prompt_tokens: int = 0
    submitted_at: float = 0.0
    ended: dict[int, Finished] = field(default_factory=dict)  # by sample
    error: str | None = None

    def sample_ended(self, sample: int, finished: Finished) -> None:
        """One of its sequences ended."""
        self.ended[sample] = finished
        if finished.reason == "error":
            self.error = finished.message or finished.cause or "failure"


class Tracing:
    """Which requests are traced, and their spans.

    Args:
        share: of those whose client does not say.
    """

    def __init__(self, tracer: Tracer, share: float) -> None:
        self._tracer, self._share = tracer, share

    def begin(self, traceparent: str | None) -> RequestTrace | None:
        """A new request; None if it is not traced."""
        parent = TraceContext.parse(traceparent) if traceparent is not None else None
        if parent is None:
            return RequestTrace(self._tracer.begin(), None) if self._tracer.chance() < self._share else None
        return RequestTrace(self._tracer.child(parent), parent.span_id) if parent.sampled else None

    def ended(self, trace: RequestTrace, request: OpenRequest, now: float) -> None:
        """A request has ended."""
        whole = self._tracer.span(
            "llm_request",
            trace.context,
            trace.parent_id,
            request.arrived_at,
            now,
            kind="server",
            error=trace.error,
            attributes=self._attributes(trace, request, now),
        )
        phases = [span for sample, end in trace.ended.items() for span in self._phases(trace, sample, end)]
        self._tracer.tell(whole, *phases)

    def _phases(self, trace: RequestTrace, sample: int, finished: Finished) -> Iterator[Span]:
        """How a sequence spent its time, as the scheduler measured it."""
        facts: dict[str, dict[str, Attribute]] = {
            "queue": {"pageant.preemptions": finished.num_preemptions},
            "prefill": {"pageant.cached_tokens": finished.num_cached_tokens},
            "decode": {"gen_ai.usage.output_tokens": finished.num_output_tokens},
        }
        began = trace.submitted_at
        for name, attributes in facts.items():
            seconds = getattr(finished, f"{name}_seconds")
            if seconds > 0:
                attributes["pageant.sample"] = sample
                ended = began + seconds
                yield self._tracer.part(
                    name, trace.context, began, ended, actor="scheduler", attributes=attributes
                )
                began = ended

    def _attributes(self, trace: RequestTrace, request: OpenRequest, now: float) -> dict[str, Attribute]:
        params, first = request.opening.params, request.first_token_at
        found: dict[str, Attribute] = {
            "gen_ai.request.id": request.opening.request_id,
            "gen_ai.request.n": params.num_sequences,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.usage.input_tokens": trace.num_prompt_tokens,
            "gen_ai.usage.output_tokens": sum(end.num_output_tokens for end in trace.ended.values()),
            "gen_ai.response.finish_reasons": tuple(end.reason for end in trace.ended.values()) or ("abort",),
            "gen_ai.latency.e2e": now - request.arrived_at,
        }
        if params.max_tokens is not None:
            found["gen_ai.request.max_tokens"] = params.max_tokens
        if first is not None:
            found["gen_ai.latency.time_to_first_token"] = first - request.arrived_at
        return found
