"""anyone ──Spans──▶ observer: pieces of the way of requests that are traced.

A request is traced if its client says so (W3C's `traceparent`), or by lot. Its context travels with what is asked
for it, in the envelope, and with `Submit` where every step is wanted. Whoever works for it tells the observer how
long that took; nobody waits for that, and nothing of it is said of requests that are not traced.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from pageant.protocol.message import Message

# version, trace, parent, flags; a later version may have more after these
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """A span as its children know it: the trace's id, and its own, in hexadecimal digits (32 and 16)."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext | None:
        """None of what is no `traceparent`."""
        found = _FORM.fullmatch(traceparent.strip())
        if found is None or (found[1] == "00" and found[5] is not None):
            return None
        return cls(found[2], found[3], bool(int(found[4], 16) & 1))


Attribute = str | int | float | bool | tuple[str, ...]


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that `actor` did, or waited for, from `start` (seconds since 1970) for so many seconds.

    `parent_id` is the span that it is a part of. `error` says how it failed.
    """

    name: str
    actor: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: float
    seconds: float
    kind: Literal["internal", "server"] = "internal"
    error: str | None = None
    attributes: dict[str, Attribute] = msgspec.field(default_factory=dict)


class Spans(Message, frozen=True, kw_only=True):
    """To the observer, which passes them on."""

    spans: tuple[Span, ...]
