"""Spans of traced requests: how actors make them, and how their context travels.

`CURRENT` is the span that the running task works for. An ask carries it in the envelope. The cell makes a span
for the handler of that ask, and what the handler asks in turn is a part of that span. Tells carry no span: most
are about many requests at once.
"""

from __future__ import annotations

import random
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

from pageant.protocol.tracing import Attribute, Span, Spans, TraceContext

if TYPE_CHECKING:
    from pageant.actors.runtime.cell import Cell

OBSERVER = "observer"

CURRENT: ContextVar[TraceContext | None] = ContextVar("pageant_trace", default=None)


class Tracer:
    """Makes the spans of one actor.

    Times are seconds of the node's clock.

    Args:
        ids: generates ids. It is not the actor's own generator, whose values tracing must not change.
    """

    def __init__(self, cell: Cell, ids: random.Random) -> None:
        self._cell, self._ids = cell, ids

    def begin(self) -> TraceContext:
        """Return the first span of a new trace."""
        return TraceContext(f"{self._ids.getrandbits(127) + 1:032x}", self._span_id())

    def child(self, parent: TraceContext) -> TraceContext:
        """Return a span that is a part of another."""
        return parent._replace(span_id=self._span_id())

    def chance(self) -> float:
        """Return a random number, uniform from 0 to 1."""
        return self._ids.random()

    def _span_id(self) -> str:
        return f"{self._ids.getrandbits(63) + 1:016x}"

    def span(
        self,
        name: str,
        context: TraceContext,
        parent_id: str | None,
        began: float,
        ended: float,
        *,
        actor: str | None = None,
        kind: Literal["internal", "server"] = "internal",
        error: str | None = None,
        attributes: dict[str, Attribute] | None = None,
    ) -> Span:
        """Return a span between two times of the node's clock.

        Args:
            actor: the actor that did the work, if it is not this one.
        """
        clock = self._cell.node.clock
        return Span(
            name=name,
            actor=actor or self._cell.name,
            trace_id=context.trace_id,
            span_id=context.span_id,
            parent_id=parent_id,
            start=clock.wall() - (clock.now() - began),
            seconds=ended - began,
            kind=kind,
            error=error,
            attributes=attributes or {},
        )

    def part(
        self,
        name: str,
        parent: TraceContext,
        began: float,
        ended: float,
        *,
        actor: str | None = None,
        attributes: dict[str, Attribute] | None = None,
    ) -> Span:
        """Return a span within another."""
        context = self.child(parent)
        return self.span(name, context, parent.span_id, began, ended, actor=actor, attributes=attributes)

    def tell(self, *spans: Span) -> None:
        """Send spans to the observer."""
        if spans:
            self._cell.node.tell(OBSERVER, Spans(spans=spans), self._cell)


class Handling:
    """The span of a handler, from its beginning on."""

    __slots__ = ("_began", "_context", "_kind", "_parent", "_token", "_tracer", "error")

    def __init__(self, tracer: Tracer, kind: str, parent: TraceContext, began: float) -> None:
        self._tracer, self._kind, self._parent, self._began = tracer, kind, parent, began
        self._context = tracer.child(parent)
        self._token = CURRENT.set(self._context)
        self.error: str | None = None

    def end(self, now: float) -> None:
        """Send the span of a handler that is done at `now`, in seconds of the node's clock."""
        CURRENT.reset(self._token)
        parent_id = self._parent.span_id
        self._tracer.tell(
            self._tracer.span(
                self._kind, self._context, parent_id, self._began, now, kind="server", error=self.error
            )
        )
