"""Commands that take vLLM's flags beside their own, in all of vLLM's ways of writing them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pageant.actors.client.vllm_names.command_line import (
    FLAGS,
    plain_flags,
    taken_apart,
    with_config,
)
from pageant.actors.client.vllm_names.engine import ENGINE
from pageant.actors.client.vllm_names.server import SERVER
from pageant.actors.client.vllm_names.translating import translated
from pageant.protocol.checks import expected
from pageant.protocol.errors import ArgumentError, TopologyError
from pageant.scripts.help_text import PlainCommand, write_options_in_groups

_GIVEN: ContextVar[dict[str, Any]] = ContextVar("given")
"""What vLLM's flags say on the command line that was read last, by name."""


class EngineCommand(PlainCommand):
    """A command with engine options."""

    rows = frozenset(ENGINE)
    """The names of the table whose flags it takes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes vLLM's flags out, and has Typer read the rest.

        Raises:
            ArgumentError: an option that nobody knows, or a value that is refused.
        """
        own, many = self._own()
        written = args if "--config" in own else with_config(args)
        left, given, unknown = taken_apart(plain_flags(written), own, many)
        unknown += [flag for flag, (row, _) in FLAGS.items() if row.name in given.keys() - self.rows]
        if unknown:
            raise ArgumentError(unknown[0], _unknown(unknown[0], own))
        _GIVEN.set(given)
        return super().parse_args(ctx, left)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in groups: the command's own, then those that every such command has."""
        write_options_in_groups(self, ctx, formatter)

    def _own(self) -> tuple[dict[str, int], frozenset[str]]:
        """The command's own options with the number of their values, and those that may stand several times."""
        own: dict[str, int] = {"--help": 0}
        many: set[str] = set()
        for parameter in self.params:
            if getattr(parameter, "param_type_name", "") != "option":
                continue
            flags = [*parameter.opts, *parameter.secondary_opts]
            count = 0 if getattr(parameter, "is_flag", False) else parameter.nargs
            own |= dict.fromkeys(flags, count)
            many |= {*flags} if getattr(parameter, "multiple", False) else set()
        return own, frozenset(many)


class ServeCommand(EngineCommand):
    """The command that serves, which takes the flags of vLLM's server, too."""

    rows = frozenset((*ENGINE, *SERVER))


def vllms_flags() -> dict[str, Any]:
    """Return what the flags of vLLM's engine say on the running command's line, under vLLM's names.

    Raises:
        ArgumentError: a value that is refused; names the flag.
    """
    given = {name: value for name, value in all_flags().items() if name in ENGINE}
    try:
        translated(given)
    except TopologyError as error:
        raise ArgumentError(f"--{error.place.replace('_', '-')}", error.message) from None
    return given


def all_flags() -> dict[str, Any]:
    """The same, with the flags of its server."""
    return dict(_GIVEN.get({}))


def _unknown(flag: str, own: dict[str, int]) -> str:
    """Return what to say of an option that nobody knows."""
    key = flag.lstrip("-").replace("-", "_")
    if key in _keys():
        return f"no such option, but a key of a topology; expected --set {key}=VALUE"
    nearest = expected(flag, [*own, *FLAGS])
    if not nearest.startswith("did you mean"):
        nearest = "see --help"
    return f"no such option; {nearest} (other keys of a topology: --set KEY=VALUE)"


def _keys() -> set[str]:
    """Settings that every topology has."""
    from pageant.actors.client.cast import DEFAULT_CAST
    from pageant.actors.runtime.classes import load_actor_class
    from pageant.actors.runtime.topology import FORM

    names = DEFAULT_CAST.classes.values()
    fields = {field for name in names for field in load_actor_class(name, "").Options.__struct_fields__}
    return fields | FORM | DEFAULT_CAST.extra_settings
