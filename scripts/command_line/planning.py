"""Commands that plan capacity, and tune a topology to a service level."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.loads import parse_rate
from pageant.scripts.report import Json


class Handover(enum.StrEnum):
    """Values of the router's option."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


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
        str | None,
        typer.Option(
            help="Requests per second, such as 20 or 20/s. [default: as recorded]", show_default=False
        ),
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
    prefills: Annotated[
        int, typer.Option(help="So many of the replicas compute prompts for the others.")
    ] = 0,
    handover: Annotated[Handover, typer.Option(help="With --prefills: whether they do.")] = Handover.AUTO,
    copy_rate: Annotated[
        float | None,
        typer.Option(
            help="With --prefills: tokens per second that are copied to a store. [default: measured]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the requests that are drawn.")] = 0,
    json: Json = None,
) -> None:
    """Say how many replicas hold a service level, in model time, from a recording or a short measurement."""
    from pageant.scripts.commands import plan as command

    per_second = None if rate is None else parse_rate(rate)
    load = command.PlannedLoad(
        input_tokens, output_tokens, prefix_tokens, prefixes, per_second, requests, seed
    )
    command.plan(
        *(recording, engine, load),
        replicas=replicas,
        replicas_max=replicas_max,
        slo=slo,
        routing=routing,
        json=json,
        prefills=prefills,
        handover=handover.value,
        copy_rate=copy_rate,
    )


@with_engine_options
def tune(
    engine: dict[str, Any],
    slo: Annotated[
        str,
        typer.Option(help="Bounds that the 99th percentiles hold, as ttft=500ms,itl=50ms (or tpot, e2e)."),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A checkpoint's folder or a hub id; the same as --model."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Requests per second, such as 20/s. [default: as recorded, or the most that is expected to hold]",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="chat, mixed, bursts, summaries or agents. [default: mixed]", show_default=False),
    ] = None,
    recording: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead, take the requests from there.")
    ] = None,
    input_tokens: Annotated[
        str | None, typer.Option(help="Instead, prompts of so many: 128, 16:64 or normal:256:64.")
    ] = None,
    output_tokens: Annotated[str, typer.Option(help="With --input-tokens: of an output.")] = "128",
    allow_quantization: Annotated[
        str, typer.Option(metavar="KINDS", help="Also try weights in int8, int4 or both, as int8,int4.")
    ] = "",
    speculate: Annotated[
        bool | None,
        typer.Option(help="Also try n-gram speculation. [default: with a recording]", show_default=False),
    ] = None,
    replicas_max: Annotated[int, typer.Option(min=1, help="The most replicas that are tried.")] = 4,
    trials: Annotated[int, typer.Option(help="Candidates that are simulated, at most.")] = 60,
    candidates: Annotated[int, typer.Option(help="Of these, how many are really run.")] = 3,
    seconds: Annotated[float, typer.Option(help="In which requests arrive, in a real run.")] = 20.0,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The topology is written there.")] = Path(
        "tuned.yaml"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Even if there is such a file.")] = False,
    seed: Annotated[int, typer.Option(help="Of the search, and of requests that are drawn.")] = 0,
    json: Json = None,
) -> None:
    """Find a topology that holds a service level on this machine, and say what binds. Ends with 1 if none does."""
    from pageant.scripts.commands import tune as command

    found = command.tune(
        checkpoint,
        engine,
        command.TunedLoad(workload, recording, input_tokens, output_tokens, rate, seed),
        command.Effort(trials, candidates, seconds),
        slo=slo,
        quantizations=[one.strip() for one in allow_quantization.split(",") if one.strip()],
        speculates=speculate,
        replicas_max=replicas_max,
        output=output,
        overwrite=overwrite,
        json=json,
    )
    if not found:
        raise typer.Exit(1)
