"""Spans as OpenTelemetry's collectors take them: OTLP over HTTP, in its JSON form.

Written out here rather than taken from OpenTelemetry's packages: it is one request with one body, and so there is
nothing to install to have traces.
"""

from __future__ import annotations

import http.client
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pageant.actors.runtime.version import VERSION
from pageant.protocol.tracing import Attribute, Span

BATCH_MAX = 512  # spans in a request
WAITING_MAX = 16_384  # spans; what comes then is dropped
POST_SECONDS_MAX = 5.0
PASSING = (429, 502, 503, 504)  # statuses after which the same may be sent again
KINDS = {"internal": 1, "server": 2}
STATUS_ERROR = 2

_encode = msgspec.json.Encoder().encode


class Failure(NamedTuple):
    """Reason why a request did not succeed, and whether it may at another time."""

    reason: str
    passes: bool


class Outgoing:
    """Spans that wait to be sent, bounded; and what became of the others, by count."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(exported=0, failed=0, dropped=0)
        self._waiting: deque[Span] = deque()

    def add(self, spans: Sequence[Span]) -> None:
        """Queue spans as far as there is room; count those that are dropped."""
        room = WAITING_MAX - len(self._waiting)
        self._waiting.extend(spans[:room])
        self.counts["dropped"] += max(0, len(spans) - room)

    def next(self) -> list[Span]:
        """Take out the next batch."""
        return [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]

    def put_back(self, batch: Sequence[Span]) -> None:
        """Queue a batch again that could not be sent now."""
        self._waiting.extendleft(reversed(batch))

    def done(self, batch: Sequence[Span], state: str) -> None:
        """Count a batch whose spans are gone, by their `state`: exported or failed."""
        self.counts[state] += len(batch)


def check_endpoint(url: str, headers: Mapping[str, str]) -> None:
    """Refuses what is no URL of a collector, and headers that cannot be sent.

    Raises:
        ValueError: which, and why.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or an address in brackets
        sound = False
    if not sound or not (url.isascii() and url.isprintable()):
        raise ValueError(f"otlp_traces_endpoint is {url!r}; expected such as http://localhost:4318/v1/traces")
    for name, value in headers.items():
        if not (name and (name + value).isascii() and (name + value).isprintable()):
            raise ValueError(
                f"otlp_headers.{name}: expected a name and a value of printable ASCII characters"
            )


def post(url: str, headers: Mapping[str, str], body: bytes) -> Failure | None:
    """Sends one body, and waits for the answer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=POST_SECONDS_MAX)
    path = (parts.path.rstrip("/") or "/v1/traces") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", path, body, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return Failure(f"{type(error).__name__}: {error}", passes=True)
    finally:
        connection.close()
    if 200 <= answer.status < 300:
        return None
    return Failure(f"{answer.status} {answer.reason}: {said}", passes=answer.status in PASSING)


def encode(spans: Sequence[Span], service: str) -> bytes:
    """The body that tells of these spans."""
    resource = {"service.name": service, "service.version": VERSION}
    scope = {"name": "pageant", "version": VERSION}
    return _encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(resource)},
                    "scopeSpans": [{"scope": scope, "spans": [_span(span) for span in spans]}],
                }
            ]
        }
    )


def _span(span: Span) -> dict[str, Any]:
    start = round(span.start * 1e9)
    found = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + round(span.seconds * 1e9)),
        "attributes": _attributes({"pageant.actor": span.actor, **span.attributes}),
    }
    if span.parent_id is not None:
        found["parentSpanId"] = span.parent_id
    if span.error is not None:
        found["status"] = {"code": STATUS_ERROR, "message": span.error}
    return found


def _attributes(attributes: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Attribute) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
    return {"arrayValue": {"values": [_value(one) for one in value]}}
