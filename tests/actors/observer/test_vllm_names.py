"""The metrics that vLLM's users have on their dashboards, under its names, types and labels."""

from __future__ import annotations

import re

import msgspec

from pageant.actors.observer.vllm_names import HISTOGRAMS, vllm_page

LABELS = {"engine": "0", "model_name": "demo"}
TYPES = {
    **dict.fromkeys(HISTOGRAMS, "histogram"),
    **dict.fromkeys(
        (
            *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason"),
            *("kv_cache_usage_perc", "cache_config_info"),
        ),
        "gauge",
    ),
    **dict.fromkeys(
        (
            *("num_preemptions_total", "prompt_tokens_total", "prompt_tokens_cached_total"),
            *("generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
            *("request_success_total", "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
            *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
        ),
        "counter",
    ),
}


def samples(page):
    """Values by name and labels."""
    found = {}
    for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*)\} (\S+)$", page, re.M):
        found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


def value(page, name, **more):
    return samples(page)[name, frozenset((LABELS | more).items())]


def test_names_types_and_labels_are_vllms(everything):
    page = vllm_page(everything)
    assert dict(re.findall(r"^# TYPE vllm:(\S+) (\S+)", page, re.M)) == TYPES
    for name, labels in samples(page):
        more = {"finished_reason", "position", "reason", "le"}
        if name != "cache_config_info":
            assert {label for label, _ in labels} - more == {*LABELS}, name


def test_values_are_what_was_counted(everything):
    page = vllm_page(everything)
    assert value(page, "num_requests_running") == 3
    assert value(page, "num_requests_waiting_by_reason", reason="capacity") == 2
    assert value(page, "kv_cache_usage_perc") == 0.25
    assert value(page, "request_success_total", finished_reason="stop") == 3
    assert value(page, "request_success_total", finished_reason="length") == 0
    assert value(page, "spec_decode_num_accepted_tokens_per_pos_total", position="0") == 4
    assert 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",' in page


def test_what_several_frontends_counted_of_a_model_is_summed(everything):
    one = everything.frontends["http"]
    both = msgspec.structs.replace(everything, frontends={"http": one, "frontend": one})
    page = vllm_page(both)
    assert value(page, "prompt_tokens_total") == 40 and value(page, "generation_tokens_total") == 60
    assert value(page, "request_success_total", finished_reason="stop") == 6
    (alone,) = {
        count for (name, _), count in samples(vllm_page(everything)).items() if name.endswith("params_n_sum")
    }
    assert value(page, "request_params_n_sum") == 2 * alone


def test_models_and_engines_are_told_apart(everything):
    scheduler = everything.schedulers["scheduler"]
    names = {"small/scheduler": ("small", "0"), "large/replica-1/scheduler": ("large", "1")}
    models = {"small/": "small", "large/": "large"}
    seen = msgspec.structs.replace(everything, models=models, schedulers=dict.fromkeys(names, scheduler))
    for model, engine in names.values():
        assert value(vllm_page(seen), "num_requests_running", model_name=model, engine=engine) == 3
