"""actors ──Spans──▶ observer: the timed parts of requests that are traced.

A request is traced if its client says so (W3C's `traceparent`), or by lot. Its context travels in the
envelope of what is asked for it, and with `Submit` where every step is wanted. Each actor that works for it
tells the observer how long that took. No actor waits for that, and requests that are not traced send nothing.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from pageant.protocol.message import Message

# Version, trace, parent and flags. A later version may have more fields after these.
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """A span as its children know it."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext | None:
        """Return the context of a `traceparent`, or None if the text is none."""
        found = _FORM.fullmatch(traceparent.strip())
        if found is None or (found[1] == "00" and found[5] is not None):
            return None
        return cls(found[2], found[3], bool(int(found[4], 16) & 1))


Attribute = str | int | float | bool | tuple[str, ...]


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An activity or a wait of `actor`."""

    name: str
    actor: str
    trace_id: str
    span_id: str
    parent_id: str | None
    """The span that it is a part of."""
    start: float
    """Seconds since 1970."""
    seconds: float
    """The duration."""
    kind: Literal["internal", "server"] = "internal"
    error: str | None = None
    """How it failed; None if it did not."""
    attributes: dict[str, Attribute] = msgspec.field(default_factory=dict)


class Spans(Message, frozen=True, kw_only=True):
    """Tell the observer of spans, which it exports."""

    spans: tuple[Span, ...]
