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
    replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Every engine has replicas, which one seed in five has otherwise."),
    ] = False,
    handover_deaths: Annotated[
        int | None,
        typer.Option(
            metavar="SEED",
            help="Instead, let each actor die before and after each message of this seed's first handover.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the engine in simulated time, with actors killed and messages delayed and lost as each seed says."""
    from pageant.scripts.commands import simulate as command

    find_classes_here()
    classes = command.parse_classes(actor or [])
    if handover_deaths is not None:
        if classes or trace is not None or json:
            raise typer.BadParameter("--handover-deaths and --actor, --trace and --json exclude one another")
        held = command.handover_deaths(handover_deaths, jobs)
    elif trace is not None:
        held = command.trace(trace, classes, replicas=replicas)
    else:
        options = {"shrink": shrink, "json": json, "replicas": replicas}
        held = command.simulate(command.parse_seeds(seeds), jobs, classes, **options)
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
    until: Annotated[
        int | None,
        typer.Option(
            metavar="STEP", help="Instead, show the plan, the queue and the blocks at this step, from 1."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Instead, find the first step at which another recording, policy or module:Class decides differently.",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="NEW", help="Instead, write the replay as a recording, to compare with later."),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Instead, serve a page with a slider over the steps, on this host.")
    ] = False,
    port: Annotated[int, typer.Option(help="Of the page; 0 is any that is free.")] = 8010,
    json: Figures = None,
) -> None:
    """Ask of another topology what a recorded one was asked, and show how the two differ."""
    from pageant.scripts.commands import replay as command

    if page or until is not None or against is not None or keep is not None:
        from pageant.scripts.commands import travel

        if real + page + (until is not None) + (against is not None) + (keep is not None) > 1:
            raise typer.BadParameter("--until, --against, --keep, --page and --real exclude one another")
        find_classes_here()
        changes = command.with_classes(engine, policy, scheduler)
        changes.pop("model", None)
        of = None if replica is None else f"{replica}/" if replica else ""
        told: dict[str, Any] = {"speed": None if at_once else speed, "replica": of}
        if page:
            travel.page(file, changes, port, **told)
        elif until is not None:
            travel.until(file, changes, until, json=json, **told)
        elif against is not None:
            travel.against(file, changes, against, json=json, **told)
        else:
            travel.keep(file, changes, keep, **told)
        return
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
    groups: Annotated[
        bool,
        typer.Option(
            "--groups",
            help="Instead, have each executor fail in each way: in groups of tensor 2, pipeline 2, and both.",
        ),
    ] = False,
    cycles: Annotated[
        int,
        typer.Option(
            help="With two replicas, add and drain replicas so many times instead of killing them; with --groups, how "
            "often each executor fails."
        ),
    ] = 0,
    notice: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Instead, with two replicas and a store, tell each replica that it will be gone in so many seconds.",
        ),
    ] = None,
    json: Figures = None,
) -> None:
    """Kill or stop the processes of a topology while requests stream, and see that no token is lost or changed."""
    from pageant.scripts.chaos.cutting import cut as pull
    from pageant.scripts.chaos.groups import groups as fail
    from pageant.scripts.chaos.notices import notices
    from pageant.scripts.chaos.poison import poison as feed
    from pageant.scripts.chaos.replicas import replicas
    from pageant.scripts.chaos.run import chaos as command

    if cut is not None:
        raise typer.Exit(1 if pull(engine, seconds=cut, requests=requests, tokens=tokens, path=json) else 0)
    if poison is not None:
        raise typer.Exit(1 if feed(engine, requests=poison, seconds=minutes * 60, path=json) else 0)
    if groups:
        of = {"cycles": cycles, "requests": requests, "tokens": tokens}
        raise typer.Exit(1 if fail(engine, path=json, **of) else 0)
    if notice is not None:
        wanted = {"requests": requests, "tokens": tokens, "seed": random_seed}
        raise typer.Exit(1 if notices(engine, notice=notice, path=json, **wanted) else 0)
    if cycles or (engine.get("replicas") or 1) != 1:
        engine = {"replicas": 2} | {key: value for key, value in engine.items() if value is not None}
        of = {"requests": requests, "tokens": tokens, "seed": random_seed}
        raise typer.Exit(1 if replicas(engine, cycles=cycles, path=json, **of) else 0)
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
