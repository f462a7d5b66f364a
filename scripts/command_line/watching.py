"""Commands that look at what runs, or at what there is to run on: top, pool, record and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pageant.scripts.command_line.shared import Json


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the server, if it asks for one.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="Print one interval's figures, and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each interval.")] = False,
) -> None:
    """Watch a server live: requests, tokens, latencies, blocks, devices and actors, every `--interval` seconds."""
    from pageant.scripts.commands import top as command

    command.top(url, api_key, interval, once=once, as_json=json)


def pool(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the server, if it asks for one.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a server's KV pool: blocks free, cached and held, hits, evictions, waste, and the tiers below."""
    from pageant.scripts.commands import pool as command

    command.pool(url, api_key, as_json=json)


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    topology: Annotated[
        str | None,
        typer.Option(
            help="Its name or process id, where several run here; elsewhere its address, as tcp://10.0.0.1:5700."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="For so long; without it until Ctrl-C or SIGTERM.")
    ] = None,
    texts: Annotated[
        bool, typer.Option(help="Keep prompts, outputs and what else is text. Without, only token ids.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Keep messages of this kind, or * for all; may be given several times."),
    ] = None,
    keys: Annotated[str | None, typer.Option(help="The file with the topology's key, if it has one.")] = None,
) -> None:
    """Keep what the actors of a running topology are told, for `pageant replay`."""
    from pageant.scripts.commands import record as command

    command.record(file, topology, seconds, texts=texts, kinds=kind, keys=keys)


def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A checkpoint's folder or a hub id to look at, too.")
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Instead, list which CPU kernel computes which product here.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what was found here (devices, compilers, versions), and what that means."""
    from pageant.scripts.commands import doctor as command

    if kernels:
        command.list_kernels(as_json=json)
    else:
        command.doctor(model, as_json=json)
