import json

import pytest

from pageant.actors.observer import otlp
from pageant.actors.observer.otlp import Outgoing, check_endpoint, encode, post
from pageant.protocol.tracing import Span


def span(name="x", **more):
    return Span(
        name=name,
        actor="a",
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id=None,
        start=1.5,
        seconds=0.25,
        **more,
    )


def test_a_span_is_written_as_otlps_json_has_it():
    given = {"i": 2, "f": 0.5, "b": True, "s": "t", "l": ("p",)}
    body = json.loads(encode([span(kind="server", error="E", attributes=given)], "service"))
    (resource,) = body["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "service"}} in resource["resource"]["attributes"]
    (found,) = resource["scopeSpans"][0]["spans"]
    assert found == {
        "traceId": "1" * 32,
        "spanId": "2" * 16,
        "name": "x",
        "kind": 2,
        "startTimeUnixNano": "1500000000",
        "endTimeUnixNano": "1750000000",
        "attributes": [
            {"key": "pageant.actor", "value": {"stringValue": "a"}},
            {"key": "i", "value": {"intValue": "2"}},
            {"key": "f", "value": {"doubleValue": 0.5}},
            {"key": "b", "value": {"boolValue": True}},
            {"key": "s", "value": {"stringValue": "t"}},
            {"key": "l", "value": {"arrayValue": {"values": [{"stringValue": "p"}]}}},
        ],
        "status": {"code": 2, "message": "E"},
    }


def test_what_waits_is_bounded_and_keeps_its_order(monkeypatch):
    monkeypatch.setattr(otlp, "WAITING_MAX", 5)
    monkeypatch.setattr(otlp, "BATCH_MAX", 3)
    outgoing = Outgoing()
    outgoing.add([span(str(index)) for index in range(7)])
    batch = outgoing.next()
    assert [one.name for one in batch] == ["0", "1", "2"]
    outgoing.put_back(batch)
    batch = outgoing.next()
    assert [one.name for one in batch] == ["0", "1", "2"]
    outgoing.done(batch, "exported")
    assert [one.name for one in outgoing.next()] == ["3", "4"] and outgoing.next() == []
    assert outgoing.counts == {"exported": 3, "failed": 0, "dropped": 2}


def test_nobody_there_is_no_reason_to_give_up():
    failure = post("http://127.0.0.1:9/v1/traces", {}, b"{}")
    assert failure is not None and failure.passes and "refused" in failure.reason


@pytest.mark.parametrize(
    "url",
    ["localhost:4318", "ftp://x", "http://", "", "http://x:99999", "http://x:y", "http://[x", "http://x/\n"],
)
def test_what_is_no_url_of_a_collector_is_refused(url):
    with pytest.raises(ValueError, match="otlp_traces_endpoint"):
        check_endpoint(url, {})


@pytest.mark.parametrize("headers", [{"": "x"}, {"x": "a\nb"}, {"x": "\u2014"}])
def test_headers_that_cannot_be_sent_are_refused_before_anything_is(headers):
    check_endpoint("http://x", {"authorization": "Bearer x"})
    with pytest.raises(ValueError, match="otlp_headers"):
        check_endpoint("http://x", headers)
