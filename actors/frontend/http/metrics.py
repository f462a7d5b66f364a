"""Counters and gauges in Prometheus' text format, named as vLLM names them where it has them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.scheduling import SchedulerStatistics


class ServerStatistics(NamedTuple):
    """Everything that is shown."""

    model: str
    scheduler: SchedulerStatistics
    pool: PoolStatistics
    requests: Mapping[str, int]
    """By how they ended."""
    prompt_tokens: int
    output_tokens: int
    fields_passed_over: Mapping[str, int]


def exposition(statistics: ServerStatistics) -> str:
    """The page that a scrape gets."""
    scheduler, pool = statistics.scheduler, statistics.pool
    used = (pool.num_blocks - pool.blocks_free) / pool.num_blocks if pool.num_blocks else 0.0
    page = _Page(statistics.model)
    page.add("num_requests_running", "gauge", "Requests that hold memory.", scheduler.num_running)
    page.add("num_requests_waiting", "gauge", "Requests that wait for memory.", scheduler.num_waiting)
    page.add("kv_cache_usage_perc", "gauge", "Share of the KV blocks that are held.", used)
    page.add("prompt_tokens_total", "counter", "Prompt tokens of served requests.", statistics.prompt_tokens)
    page.add("generation_tokens_total", "counter", "Output tokens.", statistics.output_tokens)
    page.add("prefix_cache_queries_total", "counter", "Prompt tokens looked up.", pool.tokens_queried)
    page.add("prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", pool.tokens_hit)
    page.add(
        "prefix_cache_copied_total", "counter", "Of those, in blocks shared in part.", pool.tokens_copied
    )
    page.add("kv_slots_wasted", "gauge", "Slots of held blocks that hold no token.", pool.slots_wasted)
    page.add("kv_block_evictions_total", "counter", "Cached blocks given to others.", pool.evictions)
    for name, value in sorted(scheduler.counters.items()):
        page.add(f"scheduler_{name}_total", "counter", f"The scheduler's count of {name}.", value)
    page.add_each(
        "request_success_total", "Requests by how they ended.", "finished_reason", statistics.requests
    )
    page.add_each(
        "request_fields_passed_over_total",
        "Request fields that have no effect here.",
        "field",
        statistics.fields_passed_over,
    )
    return page.text()


class _Page:
    def __init__(self, model: str) -> None:
        self._model = _escaped(model)
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_text: str, value: float) -> None:
        self._head(name, kind, help_text)
        self._lines.append(f'pageant:{name}{{model_name="{self._model}"}} {value:g}')

    def add_each(self, name: str, help_text: str, label: str, values: Mapping[str, int]) -> None:
        self._head(name, "counter", help_text)
        for key, value in sorted(values.items()):
            labels = f'model_name="{self._model}",{label}="{_escaped(key)}"'
            self._lines.append(f"pageant:{name}{{{labels}}} {value}")

    def _head(self, name: str, kind: str, help_text: str) -> None:
        self._lines += [f"# HELP pageant:{name} {help_text}", f"# TYPE pageant:{name} {kind}"]

    def text(self) -> str:
        return "\n".join((*self._lines, ""))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
