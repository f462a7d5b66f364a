"""Help texts of the command line, none of which is cut short."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

SENTENCE_MAX = 400


class PlainCommand(TyperCommand):
    """A command whose usage line has its arguments' names alone: Typer's braces look like a choice."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line."""
        return [
            piece.translate({ord("{"): None, ord("}"): None}) for piece in super().collect_usage_pieces(ctx)
        ]


class Commands(TyperGroup):
    """A group of commands, each listed with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(SENTENCE_MAX))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def write_options_in_groups(command: Any, ctx: Any, formatter: Any) -> None:
    """Write a command's options: its own first, then groups by their `rich_help_panel`."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_option = getattr(parameter, "param_type_name", "") == "option"
        group = getattr(parameter, "rich_help_panel", None) or ("Options" if is_option else "Arguments")
        groups.setdefault(group, []).append(record)
    for group, records in groups.items():
        with formatter.section(group):
            formatter.write_dl(records)
