"""Flags of `vllm serve` that are not arguments of the engine."""

from __future__ import annotations

import json
from typing import Any

from pageant.actors.client.vllm_names import values
from pageant.actors.client.vllm_names.rows import (
    Form,
    Row,
    flag,
    no_effect,
    not_yet,
    renamed,
    same,
    table,
)

ONE_SERVER = "one server has all replicas, under one supervisor"


def _origins(value: Any) -> Any:
    """A list, written as JSON or as it is; one origin is a list of one."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = json.loads(value)
    return [value] if isinstance(value, str) else list(value)


def _address(value: Any) -> Any:
    """An empty host is every interface, as in vLLM."""
    return value or "0.0.0.0"


LISTENING = (
    same("host", "127.0.0.1 unless it is given; vLLM listens on every interface", read=_address, text=True),
    same("port", "8000 unless it is given"),
    not_yet("uds", None, "servers listen on TCP", "use host and port"),
    same("api_key", "several keys are several tenants", form=Form.MANY, text=True),
    same("ssl_certfile", "serve over TLS", text=True),
    same("ssl_keyfile", "serve over TLS", text=True),
    same("ssl_ca_certs", "of clients' certificates", text=True),
    not_yet("ssl_cert_reqs", 0, "clients need no certificate"),
    not_yet("ssl_ciphers", None, "the ciphers are Python's own"),
    not_yet("enable_ssl_refresh", False, "certificates are read once", "start the server again"),
    renamed("allowed_origins", "allowed_origins", "a JSON list, or one origin", read=_origins, text=True),
    not_yet("allowed_methods", (["*"],), "all methods of the routes are allowed"),
    not_yet("allowed_headers", (["*"],), "all headers are allowed"),
    not_yet("allow_credentials", False, "web pages send keys, not cookies"),
    no_effect("root_path", "no route tells its own address; a proxy strips its prefix"),
    not_yet("middleware", (), "the server's routes are fixed", "put a proxy before it"),
    no_effect("h11_max_incomplete_event_size", "headers are bounded by the server's own parser"),
    no_effect("h11_max_header_count", "headers are bounded by the server's own parser"),
    renamed(
        "sse_keep_alive_interval",
        "keep_alive_seconds",
        "0 keeps ours, 15 seconds",
        read=values.positive_or_none,
    ),
    renamed("api_server_count", "http_servers", "so many HTTP actors", short=("-asc",)),
    not_yet("grpc", False, "the API is HTTP", "call /v1/chat/completions"),
    not_yet("grpc_port", None, "the API is HTTP", "call /v1/chat/completions"),
    same("config", "a YAML file of these options", text=True),
    not_yet(
        "headless", False, "a server has its own HTTP actor", "use `pageant node --join` for further hosts"
    ),
    no_effect("data_parallel_supervisor_port", ONE_SERVER),
    no_effect("dp_supervisor_probe_interval_s", ONE_SERVER),
    no_effect("dp_supervisor_probe_timeout_s", ONE_SERVER),
    no_effect("dp_supervisor_probe_failure_threshold", ONE_SERVER),
)

ANSWERING = (
    renamed(
        "lora_modules",
        "adapters",
        "name=path, or JSON; a path may be a hub id",
        form=Form.MANY,
        read=values.adapters,
        text=True,
    ),
    no_effect(
        "chat_template_content_format",
        "text parts are joined where a template takes texts, and passed on where it takes parts",
        neutral=("auto", "string", "openai"),
    ),
    flag(same("trust_request_chat_template", "requests' templates are rendered in a process of their own")),
    flag(
        no_effect(
            "trust_request_mm_kwargs", "no processor takes options of a request, but an `fps` of a video"
        )
    ),
    same("default_chat_template_kwargs", "where a request does not set them"),
    not_yet("response_role", "assistant", "answers are the assistant's"),
    flag(same("return_tokens_as_token_ids", "unless a request says otherwise")),
    flag(no_effect("enable_auto_tool_choice", "calls are read wherever a model's format is known")),
    flag(
        no_effect(
            "exclude_tools_when_tool_choice_none",
            "tools that must not be called are never put into prompts",
        )
    ),
    same("tool_call_parser", "names of vLLM's choose ours", text=True),
    not_yet("tool_parser_plugin", "", "formats of calls are built in", "use tool_call_parser"),
    not_yet("tool_strict_level", "auto", "a tool's own `strict` says it"),
    not_yet("tool_server", None, "tools are called by the client"),
    no_effect("max_log_len", "prompts are never logged"),
    flag(no_effect("enable_prompt_tokens_details", "usage always has them")),
    not_yet("enable_per_request_metrics", False, "answers have no timings", "use /metrics or traces"),
    flag(no_effect("enable_server_load_tracking", "`/load` and /metrics always tell")),
    flag(same("enable_force_include_usage", "whatever a request's `stream_options` say")),
    flag(no_effect("enable_tokenizer_info_endpoint", "`/tokenizer_info` is always served")),
    not_yet("enable_log_outputs", False, "outputs are never logged"),
    flag(no_effect("enable_log_deltas", "outputs are never logged")),
    flag(no_effect("cohere_is_reasoning_model", "there is no Cohere API")),
    no_effect("cohere_format", "there is no Cohere API"),
    no_effect("anthropic_disabled_thinking_effort", "`thinking: disabled` reaches the template as it is"),
    flag(no_effect("log_error_stack", "errors of the server itself are logged with their traceback")),
    not_yet("enable_scale_out", False, "prompts are rendered where they are computed"),
    not_yet("fingerprint_mode", ("full", "hash", "none"), "fingerprints are ours"),
    not_yet("fingerprint_value", None, "fingerprints are ours"),
    flag(no_effect("enable_request_id_headers", "answers always have x-request-id")),
    no_effect("uvicorn_log_level", "`--log-level` is for the whole server"),
    flag(no_effect("disable_uvicorn_access_log", "there is no access log")),
    no_effect("disable_access_log_for_endpoints", "there is no access log"),
    flag(no_effect("disable_fastapi_docs", "`/docs` is always served")),
    flag(no_effect("enable_offline_docs", "`/docs` fetches nothing from elsewhere")),
    flag(
        no_effect(
            "enable_flash_late_interaction", "scores are computed where the model is; see docs/embeddings.md"
        )
    ),
)

GROUPS: dict[str, tuple[Row, ...]] = {"The HTTP server": LISTENING, "Its answers": ANSWERING}
SERVER = table(*(row for rows in GROUPS.values() for row in rows))
