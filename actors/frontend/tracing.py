"""Spans and log lines of requests that have ended: one span for the whole, and one for each phase of each
sequence.

Names of attributes are OpenTelemetry's for generative models where it has any, else vLLM's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pageant.actors.runtime.tracing import Tracer
from pageant.protocol.serving import Finished
from pageant.protocol.tracing import Attribute, Span, TraceContext

if TYPE_CHECKING:
    from pageant.actors.frontend.requests import OpenRequest


log = logging.getLogger("pageant.requests")


@dataclass(frozen=True)
class RequestTrace:
    """The span of a traced request, and the span that it is a part of."""

    context: TraceContext
    parent_id: str | None


class Tracing:
    """Decides which requests are traced, and makes their spans.

    Args:
        share: the traced share of requests whose client does not decide.
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
        """Send the spans of a request that ended at `now` seconds."""
        whole = self._tracer.span(
            "llm_request",
            trace.context,
            trace.parent_id,
            request.arrived_at,
            now,
            kind="server",
            error=request.error,
            attributes=self._attributes(request, now),
        )
        phases = [
            span
            for sample, finished in request.ended.items()
            for span in self._phases(trace, request, sample, finished)
        ]
        self._tracer.tell(whole, *phases)

    def _phases(
        self, trace: RequestTrace, request: OpenRequest, sample: int, finished: Finished
    ) -> Iterator[Span]:
        """Yield the phases of a sequence, as the scheduler measured them."""
        facts: dict[str, dict[str, Attribute]] = {
            "queue": {"pageant.preemptions": finished.num_preemptions},
            "prefill": {"pageant.cached_tokens": finished.num_cached_tokens},
            "decode": {"gen_ai.usage.output_tokens": finished.num_output_tokens},
        }
        began, actor = request.submitted_at, request.scheduler
        for name, attributes in facts.items():
            seconds: float = getattr(finished, f"{name}_seconds")
            if seconds > 0:
                attributes["pageant.sample"] = sample
                ended = began + seconds
                yield self._tracer.part(name, trace.context, began, ended, actor=actor, attributes=attributes)
                began = ended

    def _attributes(self, request: OpenRequest, now: float) -> dict[str, Attribute]:
        params, first = request.opening.params, request.first_token_at
        found: dict[str, Attribute] = {
            "gen_ai.request.model": request.peers.model.name,
            "gen_ai.request.id": request.opening.request_id,
            "gen_ai.request.n": params.num_sequences,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.usage.input_tokens": request.num_prompt_tokens,
            "gen_ai.usage.output_tokens": _output_tokens(request),
            "gen_ai.response.finish_reasons": _reasons(request),
            "gen_ai.latency.e2e": now - request.arrived_at,
        }
        if params.max_tokens is not None:
            found["gen_ai.request.max_tokens"] = params.max_tokens
        if first is not None:
            found["gen_ai.latency.time_to_first_token"] = first - request.arrived_at
        return found


def log_end(request: OpenRequest, now: float) -> None:
    """Log a request that ended at `now` seconds, with facts, if the log's level includes it."""
    if not log.isEnabledFor(logging.INFO):
        return
    first = request.first_token_at
    reasons, tokens = _reasons(request), _output_tokens(request)
    facts: dict[str, Any] = {
        "request_id": request.opening.request_id,
        "model": request.peers.model.name,
        "finish_reasons": reasons,
        "prompt_tokens": request.num_prompt_tokens,
        "cached_tokens": max((end.num_cached_tokens for end in request.ended.values()), default=0),
        "output_tokens": tokens,
        "preemptions": sum(end.num_preemptions for end in request.ended.values()),
        "seconds": round(now - request.arrived_at, 6),
        "first_token_seconds": None if first is None else round(first - request.arrived_at, 6),
        "error": request.error,
        "trace_id": request.trace.context.trace_id if request.trace is not None else None,
    }
    log.info(
        "%s ended with %s after %.3f s: %d prompt tokens, %d output tokens",
        *(request.opening.request_id, request.error or ", ".join(reasons), facts["seconds"]),
        *(request.num_prompt_tokens, tokens),
        extra={"facts": facts},
    )


def _output_tokens(request: OpenRequest) -> int:
    return sum(end.num_output_tokens for end in request.ended.values())


def _reasons(request: OpenRequest) -> tuple[str, ...]:
    return tuple(end.reason for end in request.ended.values()) or ("error" if request.error else "abort",)
