"""The command that plans capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json


@with_engine_options
def plan(
    engine: dict[str, Any],
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take step times, sizes and requests from there. Without, the model is measured here first.",
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Find the fewest replicas that hold it at p99, as ttft=500ms,itl=50ms (or tpot, e2e)."
        ),
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Instead, serve the load on so many.")] = None,
    replicas_max: Annotated[int, typer.Option(help="The most replicas that are tried.")] = 256,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second. [default: as recorded]", show_default=False)
    ] = None,
    requests: Annotated[int | None, typer.Option(help="How many. [default: those of a minute]")] = None,
    input_tokens: Annotated[
        str | None,
        typer.Option(help="Of a prompt: 128, 16:64 or normal:256:64. [default: the recorded requests]"),
    ] = None,
    output_tokens: Annotated[str, typer.Option(help="Of an output, likewise.")] = "128",
    prefix_tokens: Annotated[int, typer.Option(help="That prompts share.")] = 0,
    prefixes: Annotated[int, typer.Option(help="How many different ones there are.")] = 1,
    routing: Annotated[str, typer.Option(help="The router's policy.")] = "prefix",
    seed: Annotated[int, typer.Option(help="Of the requests that are drawn.")] = 0,
    json: Json = None,
) -> None:
    """Say how many replicas hold a service level, in model time, from a recording or a short measurement."""
    from pageant.scripts.commands import plan as command

    load = command.PlannedLoad(input_tokens, output_tokens, prefix_tokens, prefixes, rate, requests, seed)
    command.plan(
        *(recording, engine, load),
        replicas=replicas,
        replicas_max=replicas_max,
        slo=slo,
        routing=routing,
        json=json,
    )
