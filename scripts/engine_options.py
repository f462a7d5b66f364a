"""The options of every command that starts actors, under the names that they have everywhere."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

LEVELS = ("debug", "info", "warning", "error")
DEMO_MODEL = Path(__file__).parent.parent / "models" / "demo"


def _mapping(text: str | None) -> dict[str, Any] | None:
    """JSON, or YAML's short form of it."""
    import yaml

    if text is None:
        return None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter(f'found {text!r}; expected a mapping such as {{"method": "ngram"}}')
    return found


def _options(
    model: Annotated[
        str | None, typer.Option(help="A checkpoint's folder or a hub id. [default: the demo]")
    ] = None,
    topology: Annotated[str | None, typer.Option(help="A YAML file, under the other options.")] = None,
    placement: Annotated[str | None, typer.Option(help="one, each or auto: where the actors live.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Most tokens of a request, output included.")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests in a batch.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens computed in a step.")
    ] = None,
    enable_prefix_caching: Annotated[bool | None, typer.Option(help="Keep the KV of ended requests.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="int8 or int4: weights are quantised while they are loaded.")
    ] = None,
    speculation: Annotated[
        str | None,
        typer.Option(
            help='Guess tokens ahead, as JSON: {"method": "ngram", "tokens": 4}.', callback=_mapping
        ),
    ] = None,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="Where traces go: http://localhost:4318/v1/traces.")
    ] = None,
    traces_sampled: Annotated[
        float | None, typer.Option(help="The share of requests that is traced, where clients do not say.")
    ] = None,
    detailed_traces: Annotated[bool | None, typer.Option(help="Trace every step of theirs.")] = None,
    vllm_metrics: Annotated[
        bool | None, typer.Option(help="Show metrics under vLLM's names too, for its dashboards.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(envvar="PAGEANT_LOG_LEVEL", help="debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(envvar="PAGEANT_LOG_FORMAT", help="text, or json: an object a line.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="From which requests without a seed draw theirs.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="What the model is called outside.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other key of a topology: actors.scheduler.options.policy=fcfs"),
    ] = None,
) -> None:
    """The options themselves."""


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's `engine` parameter by the options above; it gets them as one dictionary.

    The dictionary is what `Engine` and `LLM` take as keyword arguments.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "engine"]
    shared = list(inspect.signature(_options, eval_str=True).parameters.values())

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        engine = {option.name: values.pop(option.name) for option in shared}
        _log(engine.pop("log_level"), engine.pop("log_format"))
        command(engine=_as_arguments(engine), **values)

    parameters = sorted(own + shared, key=lambda p: p.default is not inspect.Parameter.empty)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__
    return wrapper


def _log(level: str | None, form: str | None) -> None:
    """As the options say; without any, only warnings are told."""
    from pageant.actors.runtime.logs import configure

    if level is None and form is None:
        return
    if level is not None and level not in LEVELS:
        raise typer.BadParameter(f"found {level!r}; expected {', '.join(LEVELS)}", param_hint="--log-level")
    if form not in (None, "text", "json"):
        raise typer.BadParameter(f"found {form!r}; expected text or json", param_hint="--log-format")
    configure((level or "warning").upper(), "json" if form == "json" else "text", "front")


def _as_arguments(engine: dict[str, Any]) -> dict[str, Any]:
    """Options that were given, `--set` taken apart; the demo model where nothing else is named."""
    from pageant.actors.runtime.yaml import merge

    # A class named in a topology may stand beside it, or here.
    sys.path[:0] = [os.getcwd(), *_folders(engine.get("topology"))]
    extra: dict[str, Any] = {}
    for assignment in engine.pop("set_") or ():
        extra = merge(extra, _assigned(assignment))
    given = {name: value for name, value in engine.items() if value is not None}
    if "model" not in given and not _names_model(given.get("topology")):
        given["model"] = str(DEMO_MODEL)
    return merge(given, extra)


def _folders(topology: Any) -> list[str]:
    """Where a topology's file is, if it is one."""
    return [str(Path(topology).resolve().parent)] if isinstance(topology, str | Path) else []


def with_adapters(engine: dict[str, Any], written: Sequence[str]) -> dict[str, Any]:
    """Engine options, and adapters as NAME=FOLDER."""
    adapters = dict(engine.get("adapters") or {})
    for adapter in written:
        name, _, folder = adapter.partition("=")
        if not name or not folder:
            raise typer.BadParameter(f"found {adapter!r}; expected NAME=FOLDER", param_hint="--adapter")
        if name in adapters:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--adapter")
        adapters[name] = folder
    return {**engine, "adapters": adapters} if adapters else engine


def _assigned(assignment: str) -> dict[str, Any]:
    """`a.b=1` as `{"a": {"b": 1}}`; the value is YAML."""
    import yaml

    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise typer.BadParameter(
            f"found {assignment!r}; expected KEY=VALUE, such as wire=always", param_hint="--set"
        )
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise typer.BadParameter(
            f"found {assignment!r}, whose value is no YAML: {reason}", param_hint="--set"
        ) from None
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def _names_model(topology: str | None) -> bool:
    from pageant.actors.runtime.yaml import load_yaml

    return topology is not None and not {"model", "models"}.isdisjoint(load_yaml(Path(topology)))
