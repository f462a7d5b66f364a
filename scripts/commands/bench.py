"""`pageant bench NAME`: each name is the `bench` function of a module, imported only when it is called.

A benchmark is a function with typer's annotations; `Json` and `publish` of `scripts.report` give it its `--json`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer

from pageant.scripts.engine_command import EngineCommand
from pageant.scripts.help_text import Commands, PlainCommand

BENCHMARKS = {
    name: f"pageant.scripts.bench.{name}"
    for name in (
        "adapters",
        "apart",
        "beside",
        "blocks",
        "collectives",
        "groups",
        "guided",
        "images",
        "latency",
        "level",
        "mtp",
        "overhead",
        "page",
        "placement",
        "plan",
        "prefix",
        "recurrent",
        "replicas",
        "router",
        "runtime",
        "safety",
        "serve",
        "speculation",
        "store",
        "throughput",
        "watching",
        "windows",
    )
}


class Benchmarks(Commands):
    """The group of all of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(BENCHMARKS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in BENCHMARKS:
            return None
        app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
        bench = import_module(BENCHMARKS[cmd_name]).bench
        cls = EngineCommand if getattr(bench, "takes_engine_options", False) else PlainCommand
        app.command(cmd_name, cls=cls)(_announced(cmd_name, bench))
        return typer.main.get_command(app)


def _announced(name: str, bench: Callable[..., None]) -> Callable[..., None]:
    """The benchmark, which says on standard error what it measures before it starts."""

    @functools.wraps(bench)
    def announced(**values: Any) -> None:
        summary = " ".join((bench.__doc__ or "").partition("\n\n")[0].split())
        print(f"bench {name}: {summary}", file=sys.stderr, flush=True)
        if getattr(bench, "takes_engine_options", False):
            print(f"bench {name}: a model is loaded and warmed up first", file=sys.stderr, flush=True)
        bench(**values)

    return announced


bench_app = typer.Typer(
    rich_markup_mode=None, cls=Benchmarks, help="Measure; each with --json FILE.", no_args_is_help=True
)
