"""The context of a trace travels with what is asked, over every transport."""

from __future__ import annotations

import pytest
from runtime_players import Fail, GetTold, Note, Ping, Relay

from pageant.actors.runtime.tracing import CURRENT
from pageant.protocol.errors import RemoteError
from pageant.protocol.tracing import TraceContext

SECONDS = 20.0
OURS = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
OBSERVED = {"actors": {"observer": {"class": "runtime_players:Listener"}}}


async def told(cluster, count):
    CURRENT.set(None)
    return (await cluster.node.ask("observer", GetTold(count=count), SECONDS)).spans


async def test_what_is_asked_within_a_trace_is_a_span_with_what_is_asked_for_it_within(start, transport):
    cluster = await start(transport | OBSERVED)
    await cluster.node.ask("echo", Ping(value=1), SECONDS)
    CURRENT.set(OURS)
    await cluster.node.ask("observer", Relay(value=2), SECONDS)
    with pytest.raises(RemoteError):
        await cluster.node.ask("echo", Fail(text="no"), SECONDS)
    cluster.node.tell("echo", Note(text="a tell is of nobody's trace"))
    CURRENT.set(None)
    await cluster.node.ask("echo", Ping(value=3), SECONDS)
    spans = {span.name: span for span in await told(cluster, 3)}
    assert {span.trace_id for span in spans.values()} == {OURS.trace_id}
    assert sorted(spans) == ["Fail", "Ping", "Relay"], "what was asked without a trace is no span"
    assert spans["Relay"].parent_id == spans["Fail"].parent_id == OURS.span_id
    assert spans["Ping"].parent_id == spans["Relay"].span_id
    assert (spans["Ping"].actor, spans["Relay"].actor) == ("echo", "observer")
    assert spans["Ping"].error is None and "no" in spans["Fail"].error
    assert all(span.seconds >= 0 and span.start > 1.7e9 for span in spans.values())


@pytest.mark.parametrize(
    "text,context",
    [
        (str(OURS), OURS),
        (str(OURS)[:-2] + "00", OURS._replace(sampled=False)),
        (f"01-{OURS.trace_id}-{OURS.span_id}-03-more", OURS),
        (f"00-{OURS.trace_id}-{OURS.span_id}-01-more", None),
        (f"ff-{OURS.trace_id}-{OURS.span_id}-01", None),
        (f"00-{'0' * 32}-{OURS.span_id}-01", None),
        (f"00-{OURS.trace_id}-{'0' * 16}-01", None),
        (f"00-{OURS.trace_id.upper()}-{OURS.span_id}-01", None),
        ("", None),
        ("00" * 100_000, None),
    ],
)
def test_a_traceparent_is_read_as_w3c_writes_it(text, context):
    assert TraceContext.parse(text) == context
