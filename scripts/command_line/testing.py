"""Commands that try an engine out: simulate, replay, chaos and conformance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pageant.scripts.command_line.shared import Json, find_classes_here
from pageant.scripts.engine_options import with_engine_options
from pageant.scripts.report import Json as Figures


def simulate(
    seeds: Annotated[str, typer.Option(help="One seed, or a range such as 0..500.")] = "0..100",
    jobs: Annotated[int, typer.Option(help="Processes side by side.")] = len(os.sched_getaffinity(0)),
    actor: Annotated[
        list[str] | None,
        typer.Option(
            help="An actor of your own, as scheduler=my_lab:MyScheduler; may be given several times."
        ),
    ] = None,
    trace: Annotated[int | None, typer.Option(help="Show every delivery of this one seed.")] = None,
    shrink: Annotated[bool, typer.Option(help="Look for the shortest schedule that still fails.")] = True,
    json: Json = False,
) -> None:
    """Run the engine in simulated time, with actors killed and messages delayed and lost as each seed says."""
    from pageant.scripts.commands import simulate as command

    find_classes_here()
    classes = command.parse_classes(actor or [])
    if trace is not None:
        held = command.trace(trace, classes)
    else:
        held = command.simulate(command.parse_seeds(seeds), jobs, classes, shrink=shrink, json=json)
    if not held:
        raise typer.Exit(1)


@with_engine_options
def replay(
    engine: dict[str, Any],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recording.")],
    policy: Annotated[str | None, typer.Option(help="Another policy of the scheduler.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Another scheduler, module:Class.")] = None,
    speed: Annotated[float, typer.Option(help="2 asks twice as fast as it was.")] = 1.0,
    at_once: Annotated[bool, typer.Option(help="Ask everything at once.")] = False,
    real: Annotated[
        bool,
        typer.Option(help="In real time, with a model, not in simulated time with what it said."),
    ] = False,
    replica: Annotated[str | None, typer.Option(help="Of which model, if several were served.")] = None,
    requests: Annotated[bool, typer.Option(help="Tell of each request too (in the JSON).")] = False,
    json: Figures = None,
) -> None:
    """Ask of another topology what a recorded one was asked, and show how the two differ."""
    from pageant.scripts.commands import replay as command

    command.replay(
        *(file, engine),
        policy=policy,
        scheduler=scheduler,
        speed=None if at_once else speed,
        real=real,
        replica=replica,
        requests=requests,
        json=json,
    )


@with_engine_options
def chaos(
    engine: dict[str, Any],
    minutes: Annotated[float, typer.Option(help="Minutes of random kills, after one of each process.")] = 1.0,
    requests: Annotated[int, typer.Option(help="Requests that are open at a time.")] = 64,
    tokens: Annotated[int, typer.Option(help="Output tokens of a request, about.")] = 200,
    random_seed: Annotated[int, typer.Option(help="Seed of the draw of who is killed when.")] = 0,
    cut: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Instead, pull the cable of each of three hosts for so long. They are network namespaces: root only.",
        ),
    ] = None,
    poison: Annotated[
        int | None,
        typer.Option(
            metavar="REQUESTS",
            help="Instead, send so many hostile schemas, expressions and grammars from ten clients, over the minutes.",
        ),
    ] = None,
    json: Figures = None,
) -> None:
    """Kill or stop the processes of a topology while requests stream, and see that no token is lost or changed."""
    from pageant.scripts.chaos.cutting import cut as pull
    from pageant.scripts.chaos.poison import poison as feed
    from pageant.scripts.chaos.run import chaos as command

    if cut is not None:
        raise typer.Exit(1 if pull(engine, seconds=cut, requests=requests, tokens=tokens, path=json) else 0)
    if poison is not None:
        raise typer.Exit(1 if feed(engine, requests=poison, seconds=minutes * 60, path=json) else 0)
    missed = command(engine, minutes=minutes, requests=requests, tokens=tokens, seed=random_seed, path=json)
    raise typer.Exit(1 if missed else 0)


def conformance(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="blocks, detokenizer, drafter, executor, grammar, policy, pool, scheduler or tokenizer.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Your class, as module:Class.")],
) -> None:
    """Hold a class of your own against the rules of its conversation."""
    from pageant.scripts.conformance import run as check

    find_classes_here()
    report = check(kind, name)
    print(report)
    raise typer.Exit(0 if report.passed else 1)
