"""An observation under vLLM's names, types and labels, for dashboards and autoscalers that were made for it.

vLLM labels what it counts with a model and an engine, where we name the actor too: what several actors counted of one
model is summed here. Only what we count is shown; a metric that has no counterpart here is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pageant.actors.observer.page import Page
from pageant.actors.runtime.address import index_of, model_of, replica_of
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.statistics import ExecutorStatistics, FrontendStatistics, HistogramCounts, Observation

__all__ = ["COUNTERS", "HISTOGRAMS", "vllm_page"]

PREFIX = "vllm:"
REASONS = ("stop", "length", "abort", "error")  # why a request ended: each is there from the beginning
ACCEPTED_AT = "drafts_accepted_at_"

COUNTERS = {
    "preemptions": ("num_preemptions_total", "Requests that gave up their memory to others."),
    "tokens_cached": ("prompt_tokens_cached_total", "Prompt tokens that were not computed."),
    "verifications": ("spec_decode_num_drafts_total", "Rows of steps that had drafts."),
    "drafts_proposed": ("spec_decode_num_draft_tokens_total", "Tokens that were drafted and verified."),
    "drafts_accepted": ("spec_decode_num_accepted_tokens_total", "Of those, that were right."),
}
"""The scheduler's counters, by our names."""

HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between a request's tokens.",
    "request_time_per_output_token_seconds": "A request's decode time by its tokens after the first.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
    "request_queue_time_seconds": "Before a request was admitted.",
    "request_inference_time_seconds": "From its admission to its last token.",
    "request_prefill_time_seconds": "From its admission to its first token.",
    "request_decode_time_seconds": "From its first token to its last.",
    "request_prompt_tokens": "Tokens of prompts.",
    "request_generation_tokens": "Tokens of outputs.",
    "request_max_num_generation_tokens": "Tokens of a request's longest output.",
    "request_params_n": "The n that requests ask for.",
    "request_params_max_tokens": "The max_tokens that requests ask for.",
    "iteration_tokens_total": "Tokens computed in a step.",
}

T = TypeVar("T")
Engine = tuple[tuple[str, str], ...]  # labels: the model's name, and the number of its engine


def vllm_page(observation: Observation) -> str:
    """Return the observation in Prometheus' text format, under vLLM's names."""
    page = Page(PREFIX)
    schedulers = _by_engine(observation, observation.schedulers)
    frontends = _by_engine(observation, observation.frontends)
    executors = _by_engine(observation, observation.executors)
    for engine, found in schedulers.items():
        _scheduler(page, dict(engine), found)
    for name, pool in observation.pools.items():
        labels = dict(_engine(observation.models, name))
        used = pool.blocks_held / pool.num_blocks if pool.num_blocks else 0.0
        page.gauge("kv_cache_usage_perc", "Share of the KV cache that is used.", used, labels)
        about = "Prompt tokens that were looked up in the prefix cache."
        page.counter("prefix_cache_queries_total", about, pool.tokens_queried, labels)
        page.counter("prefix_cache_hits_total", "Of those, that were found.", pool.tokens_hit, labels)
    for engine, served in frontends.items():
        _frontend(page, dict(engine), served)
    for engine, computed in executors.items():
        _histograms(page, dict(engine), [one.histograms for one in computed])
        _cache_config(page, dict(engine), computed[0])
    return page.text()


def _engine(models: Mapping[str, str], actor: str) -> Engine:
    prefix = replica_of(actor)
    return ("engine", str(index_of(prefix) or 0)), ("model_name", models.get(model_of(prefix), ""))


def _by_engine(observation: Observation, statistics: Mapping[str, T]) -> dict[Engine, list[T]]:
    found: defaultdict[Engine, list[T]] = defaultdict(list)
    for name, one in statistics.items():
        found[_engine(observation.models, name)].append(one)
    return found


def _scheduler(page: Page, labels: Mapping[str, str], found: Iterable[SchedulerStatistics]) -> None:
    running, waiting = (sum(getattr(one, name) for one in found) for name in ("num_running", "num_waiting"))
    page.gauge("num_requests_running", "Requests in the running batch.", running, labels)
    page.gauge("num_requests_waiting", "Requests that wait to be scheduled.", waiting, labels)
    reason = {**labels, "reason": "capacity"}
    page.gauge("num_requests_waiting_by_reason", "The same, by why they wait.", waiting, reason)
    counters = sum((Counter(one.counters) for one in found), Counter[str]())
    for counter, (name, about) in COUNTERS.items():
        page.counter(name, about, counters[counter], labels)
    for counter, count in sorted(counters.items()):
        if counter.startswith(ACCEPTED_AT):
            place = {**labels, "position": counter.removeprefix(ACCEPTED_AT)}
            about = "Accepted drafts by their place among a row's."
            page.counter("spec_decode_num_accepted_tokens_per_pos_total", about, count, place)


def _frontend(page: Page, labels: Mapping[str, str], served: Iterable[FrontendStatistics]) -> None:
    prompt, made = (sum(getattr(one, name) for one in served) for name in ("prompt_tokens", "output_tokens"))
    page.counter("prompt_tokens_total", "Prompt tokens of requests.", prompt, labels)
    page.counter("generation_tokens_total", "Output tokens.", made, labels)
    ended = sum((Counter(one.ended) for one in served), Counter[str]())
    counts = {**dict.fromkeys(REASONS, 0), **ended}
    page.counters("request_success_total", "Requests by how they ended.", "finished_reason", counts, labels)
    _histograms(page, labels, [one.histograms for one in served])


def _histograms(
    page: Page, labels: Mapping[str, str], counted: Iterable[Mapping[str, HistogramCounts]]
) -> None:
    for name, about in HISTOGRAMS.items():
        if parts := [one[name] for one in counted if name in one]:
            page.histogram(name, about, _sum(parts), labels)


def _sum(parts: list[HistogramCounts]) -> HistogramCounts:
    """Return the histogram of several with the same bounds."""
    columns = zip(*(part.counts for part in parts), strict=True)
    return HistogramCounts(
        bounds=parts[0].bounds, counts=tuple(map(sum, columns)), sum=sum(part.sum for part in parts)
    )


def _cache_config(page: Page, labels: Mapping[str, str], executor: ExecutorStatistics) -> None:
    shape = {
        "block_size": str(executor.block_size),
        "num_gpu_blocks": str(executor.num_blocks // len(executor.windows)),
        "cache_dtype": executor.dtype,
        "engine": labels["engine"],
    }
    page.gauge("cache_config_info", "The KV cache.", 1, shape)
