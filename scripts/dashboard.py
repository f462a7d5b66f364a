"""Writes `docs/grafana/pageant.json`: `python -m pageant.scripts.dashboard`. A dashboard of what `/metrics` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "docs" / "grafana" / "pageant.json"
COLUMNS = 3
WIDTH, HEIGHT = 24 // COLUMNS, 8  # of a panel, in Grafana's grid of 24 columns

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MODEL = 'model_name=~"$model",instance=~"$instance"'
NODE = 'instance=~"$instance"'

Panel = tuple[str, str, tuple[tuple[str, str], ...]]  # title, unit, and queries with their legends


def _rate(metric: str, by: str = "", labels: str = MODEL) -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped}(rate(pageant:{metric}{{{labels}}}[$__rate_interval]))"


def _sum(metric: str, by: str = "", labels: str = MODEL) -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped}(pageant:{metric}{{{labels}}})"


def _latency(title: str, metric: str, unit: str = "s") -> Panel:
    """Percentiles and the mean of a histogram."""
    quantiles = tuple(
        (f"histogram_quantile({share}, {_rate(f'{metric}_bucket', 'le')})", f"p{share * 100:g}")
        for share in (0.5, 0.9, 0.99)
    )
    mean = f"{_rate(f'{metric}_sum')} / {_rate(f'{metric}_count')}"
    return title, unit, (*quantiles, (mean, "mean"))


def _share(part: str, whole: str) -> str:
    return f"{_rate(part)} / {_rate(whole)}"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        (
            "Requests by state",
            "short",
            ((_sum("num_requests_running"), "running"), (_sum("num_requests_waiting"), "waiting")),
        ),
        (
            "Sequences ended per second",
            "reqps",
            ((_rate("request_success_total", "finished_reason"), "{{finished_reason}}"),),
        ),
        (
            "Errors per second",
            "reqps",
            (
                (_rate("request_errors_total", "kind"), "{{kind}}"),
                (_rate("http_errors_total", "status"), "HTTP {{status}}"),
            ),
        ),
        (
            "Tokens per second",
            "short",
            (
                (_rate("prompt_tokens_total"), "prompts"),
                (_rate("prompt_tokens_cached_total"), "prompts, cached"),
                (_rate("generation_tokens_total"), "outputs"),
            ),
        ),
        _latency("Prompt length, tokens", "request_prompt_tokens", "short"),
        _latency("Output length, tokens", "request_generation_tokens", "short"),
    ),
    "Latency": (
        _latency("Time to first token", "time_to_first_token_seconds"),
        _latency("Inter-token latency", "inter_token_latency_seconds"),
        _latency("End to end", "e2e_request_latency_seconds"),
        _latency("Queue", "request_queue_time_seconds"),
        _latency("Prefill", "request_prefill_time_seconds"),
        _latency("Decode", "request_decode_time_seconds"),
    ),
    "KV cache": (
        ("Blocks by state", "short", ((_sum("kv_blocks", "state"), "{{state}}"),)),
        (
            "Usage and hit rate",
            "percentunit",
            (
                (f"avg(pageant:kv_cache_usage_perc{{{MODEL}}})", "usage"),
                (_share("prefix_cache_hits_total", "prefix_cache_queries_total"), "prefix hits"),
            ),
        ),
        (
            "Preemptions and evictions per second",
            "ops",
            (
                (_rate("num_preemptions_total"), "preemptions"),
                (_rate("kv_block_evictions_total"), "blocks evicted"),
            ),
        ),
        (
            "Tiers below the device, blocks per second",
            "ops",
            (
                (_rate("kv_tier_saved_total", "tier"), "{{tier}}, saved"),
                (_rate("kv_tier_restored_total", "tier"), "{{tier}}, restored"),
            ),
        ),
    ),
    "Devices": (
        ("Utilisation", "percentunit", ((_rate("device_busy_seconds_total", "actor"), "{{actor}}"),)),
        ("Memory", "bytes", ((_sum("device_memory_bytes", "actor, part"), "{{actor}} {{part}}"),)),
        _latency("Step time", "step_seconds"),
        _latency("Tokens in a step", "iteration_tokens_total", "short"),
        (
            "Sequences in a step",
            "short",
            ((_share("device_rows_total", "device_steps_total"), "mean"),),
        ),
    ),
    "Speculation": (
        (
            "Accepted share of drafts",
            "percentunit",
            (
                (
                    _share("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"),
                    "accepted",
                ),
            ),
        ),
        (
            "Tokens per verified row",
            "short",
            (
                (
                    f"1 + {_share('spec_decode_num_accepted_tokens_total', 'spec_decode_num_drafts_total')}",
                    "mean",
                ),
            ),
        ),
        (
            "Accepted by place, per second",
            "ops",
            ((_rate("spec_decode_num_accepted_tokens_per_pos_total", "position"), "{{position}}"),),
        ),
    ),
    "Actors": (
        (
            "Time in handlers, share of a core",
            "percentunit",
            ((_rate("actor_handler_seconds_total", "actor", NODE), "{{actor}}"),),
        ),
        (
            "Messages handled per second",
            "ops",
            ((_rate("actor_messages_total", "actor, kind", NODE), "{{actor}} {{kind}}"),),
        ),
        ("Mailbox depth", "short", ((_sum("actor_mailbox_depth", "actor", NODE), "{{actor}}"),)),
        (
            "Bytes between nodes per second",
            "Bps",
            ((_rate("actor_wire_bytes_total", "actor, direction", NODE), "{{actor}}, {{direction}}"),),
        ),
        (
            "Restarts, and actors that are down",
            "short",
            (
                (_sum("actor_restarts_total", "actor", NODE), "{{actor}}, restarts"),
                (f"1 - pageant:actor_up{{{NODE}}} > 0", "{{actor}}, down"),
            ),
        ),
        (
            "Dead letters per second",
            "ops",
            ((_rate("node_dead_letters_total", "node, why", NODE), "{{node}}, {{why}}"),),
        ),
        (
            "CPU time, share of a core",
            "percentunit",
            ((_rate("node_cpu_seconds_total", "node", NODE), "{{node}}"),),
        ),
        ("Memory of processes", "bytes", ((_sum("node_resident_memory_bytes", "node", NODE), "{{node}}"),)),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": row,
                "id": len(panels) + 1,
                "gridPos": _place(0, top, 24, 1),
                "panels": [],
            }
        )
        top += 1
        for index, member in enumerate(members):
            at = _place(index % COLUMNS * WIDTH, top + index // COLUMNS * HEIGHT, WIDTH, HEIGHT)
            panels.append(_panel(member, len(panels) + 1, at))
        top += -(-len(members) // COLUMNS) * HEIGHT
    return {
        "title": "Pageant",
        "uid": "pageant",
        "tags": ["pageant", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("instance", "label_values(pageant:num_requests_running, instance)"),
                _variable("model", "label_values(pageant:num_requests_running, model_name)"),
            ]
        },
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    title, unit, queries = panel
    return {
        "type": "timeseries",
        "title": title,
        "id": number,
        "gridPos": at,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """The file's."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
