"""Reads the words of a `pageant` command as the command line does, without carrying them out."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from typer.core import TyperGroup
from typer.main import get_command

from pageant.scripts.cli import app


def read_words(words: Sequence[str]) -> typer.Context:
    """Return the context of a command, whose `params` has its arguments and options by name.

    Args:
        words: those after `pageant`.

    Raises:
        AssertionError: there is no such command.
        Exception: the command does not take these words; a usage error of the command line.
    """
    command, rest = get_command(app), list(words)
    context: typer.Context | None = None
    while isinstance(command, TyperGroup):
        found = command.get_command(typer.Context(command), rest[0]) if rest else None
        assert found is not None, f"pageant {' '.join(words)}: no command {rest[:1]}"
        context = typer.Context(command, parent=context)
        command, rest = found, rest[1:]
    return command.make_context(command.name, rest, parent=context)  # type: ignore[return-value]
