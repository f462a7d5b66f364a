"""The command line, `pageant`. Each command's module is imported only when it is called."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from pageant.scripts.command_line import generating, planning, quantizing, testing, topologies, watching
from pageant.scripts.command_line.replicas import replicas_app
from pageant.scripts.commands.bench import bench_app
from pageant.scripts.commands.model import model_app
from pageant.scripts.engine_command import EngineCommand, ServeCommand
from pageant.scripts.help_text import Commands, PlainCommand

app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    help="Pageant: an LLM inference engine made of actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
topology_app = typer.Typer(
    cls=Commands, rich_markup_mode=None, help="Check, show or draw a topology.", no_args_is_help=True
)
app.add_typer(topology_app, name="topology")
app.add_typer(bench_app, name="bench")
app.add_typer(model_app, name="model")
app.add_typer(replicas_app, name="replicas")


def _tell_version(asked: bool) -> None:
    if asked:
        from pageant.actors.runtime.version import VERSION

        print(f"pageant {VERSION}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Pageant: an LLM inference engine made of actors."""


def help_(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Such as serve, or bench latency.")
    ] = None,
) -> None:
    """Show what a command does and takes: the same as `pageant COMMAND --help`."""
    app([*(command or ()), "--help"])


# Every command, in the order of `pageant --help`.
COMMANDS = (
    ("run", EngineCommand, generating.run),
    ("simulate", PlainCommand, testing.simulate),
    ("chat", EngineCommand, generating.chat),
    ("serve", ServeCommand, generating.serve),
    ("run-batch", EngineCommand, generating.run_batch),
    ("top", PlainCommand, watching.top),
    ("pool", PlainCommand, watching.pool),
    ("quantize", PlainCommand, quantizing.quantize),
    ("protocol", PlainCommand, topologies.protocol),
    ("keys", PlainCommand, topologies.keys),
    ("help", PlainCommand, help_),
    ("node", PlainCommand, topologies.node),
    ("swap", PlainCommand, topologies.swap),
    ("record", PlainCommand, watching.record),
    ("replay", EngineCommand, testing.replay),
    ("plan", EngineCommand, planning.plan),
    ("tune", EngineCommand, planning.tune),
    ("kubernetes", EngineCommand, topologies.kubernetes),
    ("ps", PlainCommand, topologies.ps),
    ("doctor", PlainCommand, watching.doctor),
    ("chaos", EngineCommand, testing.chaos),
    ("conformance", PlainCommand, testing.conformance),
)
for _name, _class, _function in COMMANDS:
    app.command(_name, cls=_class)(_function)
for _name, _function in (
    ("check", topologies.topology_check),
    ("show", topologies.topology_show),
    ("draw", topologies.topology_draw),
):
    topology_app.command(_name, cls=EngineCommand)(_function)


def main() -> int:
    """Runs a command. What is the user's to mend is told in a few lines, without a traceback."""
    from pageant.protocol.errors import PageantError

    # Asked to end, the process ends in order: nothing of a topology is left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except PageantError as error:
        if os.environ.get("PAGEANT_DEBUG"):
            raise
        print(f"pageant: {error}", file=sys.stderr)
        if getattr(error, "__notes__", None):
            print("pageant: with --log-level debug the log has the traceback", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return 0
