"""Arguments of vLLM's engine about logs, counters, traces and profiles."""

from __future__ import annotations

from typing import Any

from pageant.actors.client.vllm_names.rows import Form, flag, no_effect, not_yet, renamed, same

__all__ = ["WATCHING"]

METRICS = "counters are always kept, and cost nothing until somebody asks"
OBSERVER = {"observer": {"options": {"vllm_metrics": True}}}


def _any_traces(value: Any) -> bool:
    modules = value if isinstance(value, list | tuple) else str(value).split(",")
    known = ("all", "model", "worker")
    if any(one not in known for one in modules):
        raise ValueError(f"found {value!r:.80}; expected some of {', '.join(known)}")
    return True


WATCHING = (
    flag(
        renamed(
            "disable_log_stats",
            "actors",
            "False adds an observer, which `get_metrics` asks; a server has one",
            read=lambda value: {} if value else OBSERVER,
        )
    ),
    flag(no_effect("aggregate_engine_logging", METRICS)),
    flag(no_effect("enable_log_requests", "`--log-level info` tells of each request")),
    no_effect("show_hidden_metrics_for_version", METRICS),
    flag(no_effect("kv_cache_metrics", METRICS)),
    no_effect("kv_cache_metrics_sample", METRICS),
    flag(no_effect("cudagraph_metrics", METRICS)),
    flag(no_effect("enable_mfu_metrics", METRICS)),
    flag(no_effect("enable_logging_iteration_details", "`detailed_traces` tells of each step")),
    not_yet("custom_histogram_buckets", None, "histograms have fixed buckets"),
    not_yet("per_request_spec_decode_metrics", "none", "drafts are counted for all requests together"),
    same("otlp_traces_endpoint", "where traces go", text=True),
    renamed(
        "collect_detailed_traces", "detailed_traces", "any of its values", form=Form.MANY, read=_any_traces
    ),
    not_yet("profiler_config", None, "torch's profiler is not run", "use detailed_traces or `pageant top`"),
    not_yet("enable_layerwise_nvtx_tracing", False, "layers leave no marks for profilers"),
    not_yet("logging_config", None, "logging is set up by two options", "use --log-level and --log-format"),
    not_yet("log_config_file", None, "logging is set up by two options", "use --log-level and --log-format"),
    no_effect("log_level", "a level of the command line; in Python, logging's own"),
    flag(no_effect("fail_on_environ_validation", "unknown environment variables are not looked at")),
    no_effect("shutdown_timeout", "`pageant serve --drain-seconds` lets requests finish"),
    not_yet("additional_config", (), "there are no platform plugins"),
)
