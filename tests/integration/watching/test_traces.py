from __future__ import annotations

import json

import httpx
import pytest
from websockets.sync.client import connect

import pageant
from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.actors.runtime.yaml import merge
from pageant.protocol.statistics import GetObservation

TINY = {"threads": 1, "num_blocks": 64, "progress": False}
OURS = {"threads": 1, "num_blocks": 64}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OTHER = "1" * 32


def attributes(span):
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def times(span):
    return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])


BACK = ("tokenizer", "detokenizer", "scheduler", "blocks", "executor")
PLACES = {
    "wired": {"wire": "always", "placement": "one"},
    "apart": {
        "nodes": {"front": {}, "back": {"process": True}},
        "actors": {name: {"node": "back"} for name in BACK},
    },
}


@pytest.mark.parametrize("places", PLACES)
def test_a_request_is_followed_through_all_actors_from_the_clients_own_span(checkpoint, collector, places):
    settings = {"otlp_traces_endpoint": collector.url, "detailed_traces": True}
    observer = {"options": {"otlp_headers": {"x-key": "k"}, "otlp_service_name": "mine"}}
    actors = {HTTP: {"options": {"port": 0}}, "observer": observer}
    settings = merge(OURS | settings | {"actors": actors}, PLACES[places])
    session = Session(topology_of(checkpoint.path, None, settings))
    session.start()
    try:
        url = session.served_at().split()[-1]
        body = {"prompt": "hello there", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "n": 1}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        assert httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code == 200
        unsampled = {"traceparent": f"00-{'2' * 32}-{PARENT}-00"}
        assert httpx.post(f"{url}/v1/completions", json=body, headers=unsampled).status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200  # by a request of its own, which is nobody's
        with connect(
            f"ws{url.removeprefix('http')}/v1/chat/completions",
            additional_headers={"traceparent": f"00-{OTHER}-{PARENT}-01"},
        ) as socket:
            socket.send(json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}))
            while socket.recv() != "[DONE]":
                pass
        collector.wait("llm_request", 2)
    finally:
        session.stop()
    assert {span["traceId"] for span in collector.spans} == {TRACE, OTHER}
    spans = [span for span in collector.spans if span["traceId"] == TRACE]
    names = [span["name"] for span in spans]
    assert sorted(set(names)) == [
        "Tokenize",
        "decode",
        "detokenize",
        "llm_request",
        "prefill",
        "queue",
        "step",
    ]
    assert names.count("step") == 4, "the prompt's step draws the first of four tokens"
    assert names.count("detokenize") == 2, "the first token, and what nobody looks at before the end"
    whole = spans[names.index("llm_request")]
    assert whole["parentSpanId"] == PARENT and whole["kind"] == 2
    assert {span["parentSpanId"] for span in spans if span is not whole} == {whole["spanId"]}
    assert len({span["spanId"] for span in spans}) == len(spans)
    actors = {span["name"]: attributes(span)["pageant.actor"] for span in spans}
    assert actors == {
        **{"llm_request": "http", "Tokenize": "tokenizer", "queue": "scheduler", "prefill": "scheduler"},
        **{"decode": "scheduler", "step": "executor/0", "detokenize": "detokenizer"},
    }
    phases = [times(spans[names.index(name)]) for name in ("queue", "prefill", "decode")]
    assert times(whole)[0] <= phases[0][0] <= phases[0][1] <= phases[1][1] <= phases[2][1]
    said = attributes(whole)
    assert said["gen_ai.usage.output_tokens"] == "4" and said["gen_ai.request.max_tokens"] == "4"
    assert said["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "length"}]}
    assert 0 < said["gen_ai.latency.time_to_first_token"] < said["gen_ai.latency.e2e"]
    first = min((span for span in spans if span["name"] == "step"), key=times)
    assert attributes(first)["pageant.request_tokens"] == said["gen_ai.usage.input_tokens"]
    assert collector.resources[0]["service.name"] == "mine" and collector.headers[0]["x-key"] == "k"


def test_an_engine_is_traced_too_and_a_collector_that_is_down_is_tried_again(checkpoint, collector):
    collector.statuses = [503]
    with pageant.LLM(checkpoint.path, placement="one", otlp_traces_endpoint=collector.url, **TINY) as llm:
        params = pageant.SamplingParams(temperature=0, max_tokens=3, n=1, ignore_eos=True)
        parent = f"00-{TRACE}-{PARENT}-01"
        llm.generate(["hello"], params, traceparent=parent)
        llm.generate(["hello", "there"], params)
        spans = collector.wait("llm_request", 3)
        counted = llm._session.ask("observer", GetObservation()).spans
    whole = [span for span in spans if span["name"] == "llm_request"]
    assert [span["traceId"] == TRACE for span in whole] == [True, False, False]
    assert len({span["traceId"] for span in whole}) == 3
    assert "parentSpanId" not in whole[1]
    assert {span["name"] for span in spans} == {"llm_request", "Tokenize", "queue", "prefill", "decode"}
    assert not collector.statuses, "it was turned away once"
    assert (counted["failed"], counted["dropped"]) == (0, 0)


def test_what_fails_says_so_and_nothing_is_traced_by_lot_where_none_shall_be(checkpoint, collector):
    settings = {"otlp_traces_endpoint": collector.url, "traces_sampled": 0.0}
    with pageant.LLM(checkpoint.path, placement="one", **settings, **TINY) as llm:
        llm.generate(["hello"], pageant.SamplingParams(max_tokens=2))
        with pytest.raises(pageant.PageantError):
            llm.generate(["x" * 4000], traceparent=f"00-{TRACE}-{PARENT}-01")
        spans = collector.wait("llm_request")
    (whole,) = [span for span in spans if span["name"] == "llm_request"]
    assert whole["status"]["code"] == 2 and "BadRequest" in whole["status"]["message"]
    assert {span["traceId"] for span in spans} == {TRACE}


def test_without_an_endpoint_there_is_no_observer(checkpoint):
    with pageant.LLM(checkpoint.path, placement="one", **TINY) as llm:
        (node,) = llm.statistics()
        assert "observer" not in node.actors and not node.dead_letters
