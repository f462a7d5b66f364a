"""Writes `docs/commands.md` from the command line: `python -m pageant.scripts.command_line.page`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "main", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"

INTRODUCTION = """\
# Commands

This page is a reference: every command of `pageant`, with its arguments and options. It is written from the help texts
by `python -m pageant.scripts.command_line.page`; edit them, not this page. `pageant COMMAND --help` shows the same.
Commands that start an engine take [further options](#options-of-every-engine).
"""
ENGINES = """\
## Options of every engine

`run`, `chat`, `serve` and the other commands that start an engine take these, and vLLM's flags
([from vLLM](from-vllm.md)). [Topologies](topologies.md) explains the settings.
"""
LAST = ("bench",)
"""Commands that are most of the page, and that few look for."""
LINKLESS = "\\["
"""A bracket that begins no link."""
Record = tuple[str, str]
"""An option as it is written, and its help text."""


def render() -> str:
    """Return the page."""
    from pageant.scripts.cli import app

    parts, shared = [INTRODUCTION], dict[str, list[Record]]()
    for path, command, context in _commands(_command_of(app), "pageant", None):
        parts.append(f"## {path}\n\n{_sentences(command.help)}\n\n{_usage(command, context)}")
        own = _records(command, context)
        parts += _table(own.pop(None, []))
        shared |= {group: records for group, records in own.items() if group is not None}
    parts.append(ENGINES)
    for group, records in shared.items():
        parts += [f"### {group}\n", *_table(records)]
    return "\n".join(parts).rstrip() + "\n"


def _command_of(app: Any) -> Any:
    import typer.main

    return typer.main.get_command(app)


def _commands(command: Any, path: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each command that does something, with its path and its context."""
    context = command.make_context(path.rpartition(" ")[2], [], parent=parent, resilient_parsing=True)
    if not hasattr(command, "list_commands"):
        yield path, command, context
        return
    names = command.list_commands(context)
    for name in sorted(names, key=lambda name: (name in LAST, name)):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            yield from _commands(found, f"{path} {name}", context)


def _records(command: Any, context: Any) -> dict[str | None, list[Record]]:
    """Return the arguments and options by their groups; those of the command alone are in the group None."""
    found: dict[str | None, list[Record]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            found.setdefault(getattr(parameter, "rich_help_panel", None), []).append(record)
    return found


def _usage(command: Any, context: Any) -> str:
    return f"Usage: `{' '.join([context.command_path, *command.collect_usage_pieces(context)])}`\n"


def _sentences(text: str) -> str:
    return " ".join(text.split())


def _table(records: list[Record]) -> list[str]:
    if not records:
        return []
    rows = [f"| `{_cell(written)}` | {_cell(text).replace('[', LINKLESS)} |" for written, text in records]
    return ["| option | meaning |", "|---|---|", *rows, ""]


def _cell(text: str) -> str:
    return _sentences(text).replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
