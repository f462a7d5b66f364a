from __future__ import annotations

import json
import re

import httpx

from pageant.actors.client.cast import HTTP
from pageant.actors.client.session import Session
from pageant.actors.client.settings import topology_of
from pageant.scripts.dashboard import FILE


def samples(page):
    """Sums by name, whatever their labels."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            sample, value = line.rsplit(" ", 1)
            name = sample.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def test_a_server_with_everything_shows_what_the_dashboard_asks_for_and_counts_right(checkpoint):
    settings = {
        **{"placement": "one", "threads": 1, "num_blocks": 64, "host_memory": "1MiB"},
        "speculation": {"method": "ngram", "tokens": 3, "adaptive": False},
        "actors": {HTTP: {"options": {"port": 0}}},
        "vllm_metrics": True,
    }
    session = Session(topology_of(checkpoint.path, None, settings))
    session.start()
    try:
        url = session.served_at().split()[-1]
        body = {"prompt": [5, 6, 7, 8] * 12, "max_tokens": 24, "ignore_eos": True, "temperature": 0}
        body["logit_bias"] = {"5": 100}  # what repeats is guessed right
        with httpx.Client(base_url=url) as http:
            assert http.post("/v1/completions", json=body | {"n": 1}).status_code == 200
            assert http.post("/v1/completions", json=body | {"temperature": -1}).status_code == 400
            assert http.post("/v1/completions", json=body | {"stream": True}).status_code == 200
            page = http.get("/metrics").text
    finally:
        session.stop()
    found = samples(page)
    asked = set(re.findall(r"pageant:\w+", json.dumps(json.loads(FILE.read_text()))))
    quiet = {
        "pageant:actor_wire_bytes_total",
        "pageant:node_dead_letters_total",
    }  # one process, and nothing lost
    kinds = set(re.findall(r"^# TYPE (\S+)", page, re.M))
    assert asked - quiet - kinds - found.keys() == set()

    def of(name):
        return found[f"pageant:{name}"]

    assert (of("prompt_tokens_total"), of("generation_tokens_total")) == (96, 48)
    assert of("request_success_total") == of("e2e_request_latency_seconds_count") == 2
    assert of("time_to_first_token_seconds_count") == of("request_queue_time_seconds_count") == 2
    assert of("inter_token_latency_seconds_count") == 46 and of("http_errors_total") == 1
    assert of("http_streamed_tokens_total") == 24
    assert of("request_generation_tokens_sum") == of("request_max_num_generation_tokens_sum") == 48
    proposed, accepted = of("spec_decode_num_draft_tokens_total"), of("spec_decode_num_accepted_tokens_total")
    assert 0 < accepted == of("spec_decode_num_accepted_tokens_per_pos_total") <= proposed
    assert of("spec_decode_num_drafts_total") <= proposed
    assert of("device_steps_total") == of("step_seconds_count") == of("iteration_tokens_total_count") > 2
    assert of("prefix_cache_hits_total") > 0 and of("device_busy_seconds_total") > 0
    assert of("actor_up") >= 9 and of("actor_restarts_total") == 0
    same = (
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_hits_total",
        "request_success_total",
    )
    for name in (
        *same,
        "time_to_first_token_seconds_count",
        "iteration_tokens_total_count",
        "kv_cache_usage_perc",
    ):
        assert found[f"vllm:{name}"] == of(name), name
