"""The options of every command that starts actors, under the names that they have everywhere."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from pageant.actors.client.vllm_names.values import adapters as read_adapters
from pageant.scripts.engine_command import vllms_flags
from pageant.scripts.shared_options import SHARED

LEVELS = ("debug", "info", "warning", "error")
OTHER_LEVELS = {"critical": "error", "notset": "debug", "warn": "warning"}
DEMO_MODEL = Path(__file__).parent.parent / "models" / "demo"


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's `engine` parameter by the shared options; it gets them as one dictionary.

    The dictionary is what `Engine` and `LLM` take as keyword arguments. Options of the command's own go first, and
    hide shared ones of the same name. Its class is `EngineCommand`, which takes vLLM's flags, too.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "engine"]
    names = {parameter.name for parameter in own}
    shared = [option.parameter() for option in SHARED if option.name not in names]

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
    wrapper.takes_engine_options = True  # type: ignore[attr-defined]
    return wrapper


def _log(level: str | None, form: str | None) -> None:
    """Set up logging as the options say; without any, only warnings are told."""
    from pageant.actors.runtime.logs import configure

    if level is None and form is None:
        return
    level = None if level is None else OTHER_LEVELS.get(level.lower(), level.lower())
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
    given = {name: value for name, value in engine.items() if value is not None} | vllms_flags()
    if "model" not in given and not _names_model(given.get("topology")):
        given["model"] = str(DEMO_MODEL)
    return merge(given, extra)


def _folders(topology: Any) -> list[str]:
    """Return the folder of a topology's file, if it is one."""
    return [str(Path(topology).resolve().parent)] if isinstance(topology, str | Path) else []


def with_adapters(engine: dict[str, Any], written: Sequence[str]) -> dict[str, Any]:
    """Engine options, and adapters as NAME=FOLDER or in vLLM's JSON."""
    try:
        found = read_adapters(written)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--adapter") from None
    adapters = {**(engine.get("adapters") or {}), **found}
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
