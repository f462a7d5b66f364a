"""Metrics as objects, read from the page that Prometheus gets."""

from pageant.actors.client.metrics import (
    Counter,
    Gauge,
    Histogram,
    Vector,
    read_page,
)

PAGE = """\
# HELP pageant:other_total Ours.
# TYPE pageant:other_total counter
pageant:other_total{} 3
# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"b"} 2.5
# HELP vllm:spec_decode_num_drafts_total Drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 7
vllm:spec_decode_num_drafts_total{engine="1"} 8
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 5
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 1
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 4
vllm:iteration_tokens_total_sum{engine="0"} 12.5
vllm:iteration_tokens_total_count{engine="0"} 4
"""


def test_every_kind_is_read():
    assert read_page(PAGE) == [
        Gauge("vllm:num_requests_running", {"engine": "0", "model_name": 'a"b'}, 2.5),
        Counter("vllm:spec_decode_num_drafts", {"engine": "0"}, 7),
        Counter("vllm:spec_decode_num_drafts", {"engine": "1"}, 8),
        Vector("vllm:spec_decode_num_accepted_tokens_per_pos", {"engine": "0"}, [5, 2]),
        Histogram("vllm:iteration_tokens_total", {"engine": "0"}, 4, 12.5, {"1.0": 1, "+Inf": 4}),
    ]


def test_an_empty_page_has_none():
    assert read_page("") == []
