"""Commands that take vLLM's flags beside their own."""

import inspect
import json
import socket

import pytest

from pageant.actors.client.cast import DEFAULT_CAST, HTTP
from pageant.actors.client.vllm_names.command_line import spelling
from pageant.actors.client.vllm_names.engine import ENGINE
from pageant.actors.client.vllm_names.rows import Form, Kind
from pageant.actors.client.vllm_names.server import SERVER
from pageant.actors.runtime.classes import load_actor_class
from pageant.protocol.errors import ArgumentError, ConfigurationError
from pageant.scripts.cli import app
from pageant.scripts.commands import run, serve
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.shared_options import SHARED

MODEL = str(DEMO_MODEL)


@pytest.fixture
def served(monkeypatch):
    """Return the session that `pageant serve` would serve, not started."""

    def build(*line):
        found = []

        def keep(engine, model, options, drain_seconds, flags):
            http = {HTTP: serve._server(options, flags)}
            found.append(serve.session_of(serve.merge(engine, {"actors": http}), model))

        monkeypatch.setattr(serve, "serve", keep)
        app(["serve", *map(str, line)], standalone_mode=False)
        return found[0]

    return build


def _options(session, role):
    return next(json.loads(one.options) for one in session.resolved.actors if one.name.startswith(role))


def test_a_line_as_vllms_users_type_it(served):
    session = served(
        *(MODEL, "--tensor-parallel-size", 1, "-dp", "1", "--max_model_len", "1k", "--dtype", "half"),
        *("--enforce-eager", "--gpu-memory-utilization", 0.8, "--max-num-seqs=16", "--disable-log-stats"),
        *("--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_json"),
        *("--reasoning-parser", "deepseek_r1", "--api-key", "a", "b", "--served-model-name", "one", "two"),
        *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}', "--port", 0),
        *("--allowed-origins", '["*"]', "--uvicorn-log-level", "error", "--kv-cache-memory-bytes", "64m"),
        *("--no-enable-prefix-caching", "-O1", "--compilation-config.mode", 3, "--api-server-count", 2),
        *("--scheduling-policy", "priority", "--sse-keep-alive-interval", 7, "--swap-space", 4),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}', "--enable-force-include-usage"),
        *("--return-tokens-as-token-ids", "--reasoning-config", '{"reasoning_start_str": "<think>"}'),
    )
    executor, http, scheduler = (_options(session, role) for role in ("executor", "http", "scheduler"))
    assert executor["dtype"] == "float16" and executor["max_model_len"] == 1000
    assert executor["kv_cache_memory"] == 64 * 10**6 and executor["max_num_seqs"] == 16
    assert scheduler["policy"] == "priority"
    assert (scheduler["speculation"]["method"], scheduler["speculation"]["tokens"]) == ("ngram", 3)
    assert http["default_chat_template_kwargs"] == {"enable_thinking": False}
    assert http["enable_force_include_usage"] and http["return_tokens_as_token_ids"]
    assert http["api_keys"] == ["a", "b"] and http["allowed_origins"] == ["*"]
    assert (http["tool_call_parser"], http["reasoning_parser"]) == ("qwen3_json", "deepseek_r1")
    assert http["keep_alive_seconds"] == 7 and session.http_servers() == ["http/0", "http/1"]
    assert (session.served.name, session.served.aliases) == ("one", ("two",))


@pytest.mark.parametrize("more", [(), ("--placement", "each"), ("--api-server-count", 2)])
def test_a_port_that_is_taken_is_found_before_the_model_loads(served, more):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        session = served(MODEL, "--port", port, *more)
        with pytest.raises(
            ConfigurationError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            serve._check_port(session)
    serve._check_port(session)


def test_a_models_path_as_it_is_typed_is_one_of_its_names(served):
    assert served(MODEL).served.aliases == (MODEL,)


def test_a_file_of_flags(served, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(
        f"model: {MODEL}\nmax-model-len: 512\nport: 1\ntensor_parallel_size: 1\nenforce-eager: true\n"
    )
    session = served("--config", file, "--port", 0)
    assert _options(session, "executor")["max_model_len"] == 512 and _options(session, "http")["port"] == 0


def test_every_flag_is_taken_with_a_value_that_asks_for_nothing(served):
    line = [MODEL]
    for row in (*ENGINE.values(), *SERVER.values()):
        if row.kind in (Kind.SAME, Kind.RENAMED) or row.name == "log_level":
            continue
        flag = spelling(row.name)
        if row.form is Form.FLAG:
            takes = row.kind is Kind.NO_EFFECT or True in row.neutral
            line.append(flag if takes else f"--no-{flag[2:]}")
        else:
            value = next(iter(row.neutral), 1 if row.kind is Kind.NO_EFFECT else None)
            line += [flag, value if isinstance(value, str) else json.dumps(value)]
    plain, found = served(MODEL), served(*line)
    assert len(line) > 350 and _options(found, "executor") == _options(plain, "executor")
    assert _options(found, "http") == _options(plain, "http")


def test_levels_of_logs_are_written_in_any_way(served, monkeypatch):
    levels = []
    monkeypatch.setattr("pageant.actors.runtime.logs.configure", lambda level, *_: levels.append(level))
    for level in ("INFO", "critical", "NOTSET", "warning"):
        served(MODEL, "--log-level", level)
    assert levels == ["INFO", "ERROR", "DEBUG", "WARNING"]


@pytest.mark.parametrize(
    "line,message",
    [
        (["-pp", "0"], "pipeline_parallel_size: found 0; expected 1 to 64"),
        (
            ["--uds", "/tmp/x"],
            "--uds: found '/tmp/x'; expected none: servers listen on TCP; use host and port",
        ),
        (["--max-model-len", "4Q"], "max_model_len: found '4Q'; expected a whole number"),
        (["--max-model-length", "4"], "--max-model-length: no such option; did you mean '--max-model-len'"),
        (
            ["--suspicion-seconds", "4"],
            "--suspicion-seconds: no such option, but a key of a topology; expected --set",
        ),
        (["--zzzz"], "--zzzz: no such option; see --help (other keys of a topology: --set KEY=VALUE)"),
        (["--model", "elsewhere"], "--model: found 'elsewhere' beside MODEL"),
        (["--tool-call-parser", "kimi_k3"], "calls of Kimi K3"),
        (["--tool-call-parser", "herms"], "found 'herms'; did you mean 'hermes'"),
        (["--lora-modules", '{"name": "a"}'], "expected name=path"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(served, line, message):
    with pytest.raises(Exception) as error:
        served(MODEL, *line)
    assert message in str(error.value)
    assert isinstance(error.value, ConfigurationError) or "lora" in line[0]


def test_flags_of_the_server_are_those_of_serve_alone(monkeypatch):
    monkeypatch.setattr(run, "run", lambda *arguments, **named: None)
    app(["run", "Hi", "--enforce-eager"], standalone_mode=False)
    with pytest.raises(ArgumentError, match="--uvicorn-log-level: no such option"):
        app(["run", "Hi", "--uvicorn-log-level", "error"], standalone_mode=False)


def test_help_shows_the_defaults_that_hold():
    classes = [*DEFAULT_CAST.classes.values(), *DEFAULT_CAST.optional.values()]
    held = {}
    for name in classes:
        for field in inspect.signature(load_actor_class(name, "").Options).parameters.values():
            held.setdefault(field.name, []).append(field.default)
    words = {"yes": True, "no": False, "none": None}
    checked = 0
    for option in SHARED:
        for default in held.get(option.name, []):
            literal = option.default in words or (option.default or "x").replace(".", "").isdigit()
            if literal and isinstance(default, bool | int | float):
                assert words.get(option.default, option.default) in (default, f"{default:g}"), option
                checked += 1
    assert checked > 12


def test_adapters_in_both_of_vllms_forms(served, tmp_path):
    line = [
        "--lora-modules",
        "a=nowhere",
        json.dumps({"name": "b", "path": "nowhere", "base_model_name": "x"}),
    ]
    with pytest.raises(ConfigurationError, match=r"adapters\.a"):
        served(MODEL, *line)
