import re

import msgspec

from pageant.actors.observer.exposition import HISTOGRAMS, exposition
from pageant.protocol.statistics import Observation
from pageant.protocol.storing import StoreStatistics


def samples(page):
    """Values by name and labels."""
    return dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))


def test_the_names_are_those_that_are_known_from_elsewhere(everything):
    names = set(re.findall(r"^# TYPE pageant:(\S+)", exposition(everything), re.M))
    assert names >= {
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total"),
        *("generation_tokens_total", "request_success_total", "cache_config_info", "iteration_tokens_total"),
        *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
        *("request_params_n", "request_params_max_tokens", "time_to_first_token_seconds"),
        *("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds"),
        *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
        *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
    }


def test_stores_are_shown_by_their_names(everything):
    store = StoreStatistics(
        num_bytes=64,
        bytes_used=32,
        blocks=3,
        reserved=1,
        pinned=2,
        saved=9,
        restored=8,
        spoilt=1,
        evictions=5,
        fetched=7,
        fetched_bytes=700,
        fetch_seconds=0.25,
        unfetched=2,
        served=4,
        disk_blocks=6,
        loaded=3,
    )
    found = samples(exposition(msgspec.structs.replace(everything, stores={"store/1": store})))
    shown = {name: value for name, value in found.items() if name.startswith("pageant:store_")}
    assert len(shown) == 20
    assert shown['pageant:store_blocks{store="store/1",state="pinned"}'] == "2"
    assert shown['pageant:store_fetched_total{store="store/1"}'] == "7"
    assert shown['pageant:store_disk_blocks{store="store/1"}'] == "6"
    assert shown['pageant:store_loaded_total{store="store/1"}'] == "3"
    assert shown['pageant:store_fetch_seconds_total{store="store/1"}'] == "0.25"


def test_what_is_counted_is_shown_under_its_labels(everything):
    found = samples(exposition(everything))
    assert found['pageant:kv_cache_usage_perc{model_name="demo",engine="0"}'] == "0.25"
    accepted = "pageant:spec_decode_num_accepted_tokens_per_pos_total"
    assert found[accepted + '{model_name="demo",engine="0",position="1"}'] == "3"
    assert found['pageant:scheduler_steps_total{model_name="demo",engine="0"}'] == "11"
    assert found['pageant:request_errors_total{model_name="demo",actor="http",kind="deadline"}'] == "1"
    assert found['pageant:http_errors_total{model_name="demo",actor="http",status="400"}'] == "2"
    assert found['pageant:http_streamed_tokens_total{actor="http"}'] == "17"
    assert found['pageant:actor_mailbox_depth{actor="scheduler",node="front"}'] == "4"
    assert found['pageant:actor_restarts_total{actor="scheduler",node="front"}'] == "2"
    handled = '{actor="scheduler",node="front",kind="Submit"}'
    assert found[f"pageant:actor_messages_total{handled}"] == "7"
    assert found[f"pageant:actor_handler_seconds_total{handled}"] == "0.5"
    sent = '{actor="scheduler",node="front",kind="StepPlan",direction="sent"}'
    assert found[f"pageant:actor_wire_bytes_total{sent}"] == "200"
    device = '{model_name="demo",actor="executor/0",device="cpu"}'
    assert found[f"pageant:device_busy_seconds_total{device}"] == "2.5"


def test_every_histogram_says_what_it_is_of(everything):
    page = exposition(everything)
    assert all(f"# HELP pageant:{name} {about}" in page for name, about in HISTOGRAMS.items())


def test_replicas_are_told_apart(everything):
    seen = everything
    pools = {"replica-0/blocks": seen.pools["blocks"], "replica-1/blocks": seen.pools["blocks"]}
    found = samples(
        exposition(Observation(**{**{f: getattr(seen, f) for f in seen.__struct_fields__}, "pools": pools}))
    )
    assert all(f'pageant:kv_cache_usage_perc{{model_name="demo",engine="{n}"}}' in found for n in (0, 1))
