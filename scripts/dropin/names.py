"""Writes down every name that vLLM's users can type, from an installed vLLM.

Run it with the Python of an environment that has vLLM, not with the project's own:

    VENV/bin/python -P scripts/dropin/names.py tests/data/vllm-0.32-names.json

The file holds names, defaults and the forms of values: facts that `docs/from-vllm.md` and its test are checked against.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

CLASSES = {
    "LLM": "vllm",
    "LLMEngine": "vllm",
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "RequestOutput": "vllm",
    "CompletionOutput": "vllm",
    "LoRARequest": "vllm.lora.request",
    "PoolingParams": "vllm",
}
OWN = "vllm"


def plain(value: Any) -> Any:
    """Return a default as JSON can hold it; null where only a class of vLLM's would do."""
    if value is inspect.Parameter.empty or callable(value):
        return None
    if isinstance(value, str | int | float | bool | None):
        return getattr(value, "value", value)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return None


def parameters(function: Any) -> dict[str, Any]:
    """Return the parameters of a function in order, with their defaults."""
    found = inspect.signature(function).parameters.values()
    return {one.name: plain(one.default) for one in found if one.name != "self" and one.kind < 4}


def members(cls: type) -> dict[str, dict[str, Any] | None]:
    """Return the public methods of a class with their parameters; null for attributes."""
    names = [name for name in dir(cls) if not name.startswith("_") or name == "__init__"]
    found: dict[str, dict[str, Any] | None] = {}
    for name in names:
        value = inspect.getattr_static(cls, name)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        try:
            found[name] = parameters(value) if callable(value) else None
        except (TypeError, ValueError):
            found[name] = None
    for one in getattr(cls, "__annotations__", {}):
        if not one.startswith("_"):
            found.setdefault(one, None)
    return found


def fields(cls: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass or msgspec struct in order, with their defaults."""
    if dataclasses.is_dataclass(cls):
        found = {}
        for one in dataclasses.fields(cls):
            made = one.default_factory() if callable(one.default_factory) else one.default
            found[one.name] = plain(None if made is dataclasses.MISSING else made)
    else:
        import msgspec

        found = {one.name: plain(one.default) for one in msgspec.structs.fields(cls)}
        found = {name: None if value == "NODEFAULT" else value for name, value in found.items()}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def flags(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Return the options of a parser, each with its spellings, its group and how its value is written."""
    found = []
    for group in parser._action_groups:
        for action in group._group_actions:
            if not action.option_strings or action.dest == "help":
                continue
            choices = list(action.choices) if action.choices is not None else None
            found.append(
                {
                    "flags": action.option_strings,
                    "name": action.dest,
                    "group": group.title,
                    "values": form(action),
                    "type": getattr(action.type, "__name__", None),
                    "choices": None if choices is None else [plain(one) for one in choices],
                    "default": plain(action.default),
                }
            )
    return sorted(found, key=lambda one: one["name"])


def form(action: argparse.Action) -> str:
    """Return how many values an option takes: none, one, optional or many."""
    forms: dict[Any, str] = {0: "none", None: "one", "?": "optional"}
    return forms.get(action.nargs, "many")


def serve_parser() -> argparse.ArgumentParser:
    """Return the parser of `vllm serve`."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    return parser


def names() -> dict[str, Any]:
    """Return everything that is written down."""
    import vllm
    from vllm.reasoning import ReasoningParserManager
    from vllm.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams
    from vllm.tool_parsers import ToolParserManager

    return {
        "version": vllm.__version__.partition("+")[0],
        "exports": sorted(vllm.__all__),
        "classes": {name: members(getattr(import_module(home), name)) for name, home in CLASSES.items()},
        "SamplingParams": fields(SamplingParams),
        "SamplingParams.from_optional": parameters(SamplingParams.from_optional),
        "BeamSearchParams": fields(BeamSearchParams),
        "StructuredOutputsParams": fields(StructuredOutputsParams),
        "EngineArgs": fields(vllm.EngineArgs),
        "AsyncEngineArgs": fields(vllm.AsyncEngineArgs),
        "serve": flags(serve_parser()),
        "tool_parsers": sorted(ToolParserManager.list_registered()),
        "reasoning_parsers": sorted(ReasoningParserManager.list_registered()),
    }


def main() -> None:
    """Write the file that is named on the command line."""
    Path(sys.argv[1]).write_text(json.dumps(names(), indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
