"""`EngineArgs` and vLLM's argument parser: the arguments of an engine, kept before there is one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, make_dataclass
from typing import TYPE_CHECKING, Any, Self

from pageant.actors.client.vllm_names.command_line import (
    ALSO,
    plain_flags,
    scalar,
    spelling,
    with_config,
)
from pageant.actors.client.vllm_names.engine import ENGINE
from pageant.actors.client.vllm_names.engine_tuning import OLDER
from pageant.actors.client.vllm_names.rows import Form, Row
from pageant.actors.client.vllm_names.translating import translated
from pageant.protocol.checks import expected
from pageant.protocol.errors import ArgumentError, TopologyError

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
"""The model of arguments that name none, as in vLLM."""
NAMES = tuple(name for name in ENGINE if ENGINE[name] not in OLDER)

if TYPE_CHECKING:

    class _Arguments:
        def __init__(self, **given: Any) -> None: ...

else:
    _Arguments = make_dataclass("_Arguments", [(name, Any, None) for name in NAMES])


class EngineArgs(_Arguments):
    """Keyword arguments of an engine, under vLLM's names; None is what is not given, but for the model.

    `vars(arguments)` and `dataclasses.asdict(arguments)` are what `LLM(**...)` takes.

    Raises:
        ArgumentError: an argument that is not there, or whose value is refused.
    """

    def __init__(self, model: Any = DEFAULT_MODEL, **given: Any) -> None:
        for name in given:
            if name not in ENGINE:
                raise ArgumentError(name, f"no such argument; {expected(name, ENGINE)}")
        try:
            translated(given)
        except TopologyError as error:
            raise ArgumentError(error.place, error.message) from None
        super().__init__(model=model, **{name: one for name, one in given.items() if name in NAMES})

    @classmethod
    def add_cli_args(cls, parser: Any) -> Any:
        """Add a flag for each argument to an `argparse.ArgumentParser`, and return it."""
        group = parser.add_argument_group("Arguments of the engine (docs/from-vllm.md)")
        for row in (ENGINE[name] for name in NAMES):
            _add(group, row)
        return parser

    @classmethod
    def from_cli_args(cls, arguments: argparse.Namespace) -> Self:
        """The arguments that a parser found; those of others are passed over."""
        found = {name: getattr(arguments, name, None) for name in NAMES}
        return cls(**{name: value for name, value in found.items() if value is not None})

    def settings(self) -> dict[str, Any]:
        """The arguments that are given, by name."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in found.items() if value is not None}


class AsyncEngineArgs(EngineArgs):
    """The same, of an engine for asyncio."""


def _add(group: Any, row: Row) -> None:
    also = [spelling(other) for other, name in ALSO.items() if name == row.name]
    default = DEFAULT_MODEL if row.name == "model" else None
    options: dict[str, Any] = {"dest": row.name, "default": default, "help": row.meaning.replace("%", "%%")}
    if row.form is Form.FLAG:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = str if row.text else scalar
        options["metavar"] = row.name.upper()
    if row.form is Form.MANY:
        options["nargs"] = "+"
    elif row.form is Form.OPTIONAL:
        options |= {"nargs": "?", "const": True}
    group.add_argument(*row.short, spelling(row.name), *also, **options)


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that takes flags as vLLM's users write them; see `command_line`."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse known arguments as argparse does, with the flags in one spelling."""
        given = list(sys.argv[1:] if args is None else args)
        known = self._option_string_actions
        if "--config" not in known:
            given = with_config(given)
        found, rest = super().parse_known_args(plain_flags(given), namespace)
        return found, rest


def as_settings(arguments: Any) -> dict[str, Any]:
    """Return what an engine is to be made with, of EngineArgs or of a mapping.

    Raises:
        ArgumentError: neither.
    """
    if isinstance(arguments, EngineArgs):
        return arguments.settings()
    if isinstance(arguments, Mapping):
        return dict(arguments)
    raise ArgumentError("engine_args", f"found a {type(arguments).__name__}; expected EngineArgs")
