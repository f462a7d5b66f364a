"""`pageant simulate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import msgspec
import typer

from pageant.scripts.simulate.engine import EngineSimulation
from pageant.scripts.simulate.handovers import find_handover
from pageant.scripts.simulate.runs import Ran, Total, run_seeds, shorten

FAILURES_MAX = 5  # that are shown
IMPORTANT = (
    *(
        "ended",
        "aborts checked",
        "deadlines_missed",
        "preemptions",
        "recomputed",
        "resumed",
        "reopened",
        "swaps",
        "moved",
    ),
    *("steps_ahead", "rows_void", "drafts_accepted", "tokens_cached", "tokens_restored"),
)
"""Counters that say what was exercised, first."""


def parse_seeds(text: str) -> range:
    """`7`, or `0..500`: from the first to before the last."""
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last)) if dots else range(int(first), int(first) + 1)
    except ValueError:
        raise typer.BadParameter(f"found {text!r}; expected a seed, or 0..500") from None
    if not seeds:
        raise typer.BadParameter(
            f"found {text!r}, in which there is no seed; expected a range such as 0..500"
        )
    return seeds


def parse_classes(given: list[str]) -> dict[str, str]:
    """`scheduler=my_lab.policies:MyScheduler`, by actor."""
    classes = {}
    for item in given:
        actor, equals, cls = item.partition("=")
        if not equals or ":" not in cls:
            raise typer.BadParameter(f"found {item!r}; expected ACTOR=module:Class")
        classes[actor] = cls
    return classes


def simulate(
    seeds: range, jobs: int, classes: Mapping[str, str], *, shrink: bool, json: bool, replicas: bool = False
) -> bool:
    """Runs seeds and says what came of them. Returns whether all held."""
    began, total = time.monotonic(), Total()
    for ran in run_seeds(seeds, jobs, classes, replicas=replicas):
        total.add(ran)
        if ran.violation is not None and not json and len(total.failed) <= FAILURES_MAX:
            _explain(ran, classes, shrink=shrink, replicas=replicas)
    seconds = time.monotonic() - began
    if json:
        what = {"range": f"{seeds.start}..{seeds.stop}", "seconds": seconds}
        print(msgspec.json.encode(what | msgspec.to_builtins(total)).decode())
    else:
        _summarise(total, seconds)
    return not total.failed


def _explain(ran: Ran, classes: Mapping[str, str], *, shrink: bool, replicas: bool) -> None:
    print(f"seed {ran.seed}: {ran.violation}", file=sys.stderr)
    if shrink:
        for fault in shorten(ran.seed, classes, replicas=replicas):
            print(f"  {fault}", file=sys.stderr)
    option = " --replicas" if replicas else ""
    print(f"  again, with every delivery: pageant simulate{option} --trace {ran.seed}", file=sys.stderr)


def _summarise(total: Total, seconds: float) -> None:
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(total.faults.items()))
    print(f"{total.seeds} seeds in {seconds:.1f} s, {len(total.failed)} with a violation")
    print(
        f"{total.requests} requests, {total.deliveries} deliveries between nodes; faults: {struck or 'none'}"
    )
    groups = (("ended requests", IMPORTANT), ("struck by a death", _moments(total)))
    shown: set[str] = set()
    for title, names in groups:
        _count(title, [name for name in names if name in total.counters], total, shown)
    _count("everything else, by name", sorted(total.counters.keys() - shown), total, shown)


def _moments(total: Total) -> list[str]:
    """Counters of deaths at each moment of a request, the rarest first: those are the least tested."""
    return sorted((name for name in total.counters if " in " in name), key=lambda name: total.counters[name])


def _count(title: str, names: list[str], total: Total, shown: set[str]) -> None:
    """Print counters under a title, and note that they were."""
    if names:
        print(f"{title}:")
    for name in names:
        print(f"  {total.counters[name]:>9,} {name}")
    shown.update(names)


def handover_deaths(seed: int, jobs: int) -> bool:
    """Run each death of an actor at each message of a seed's first handover. Return whether all held."""
    try:
        handover = find_handover(seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    began, deaths = time.monotonic(), [*handover.deaths()]
    failed = 0
    for death, violation in zip(deaths, handover.violations(deaths, jobs), strict=True):
        if violation is not None:
            failed += 1
            print(f"{death}: {violation}", file=sys.stderr)
    seconds = time.monotonic() - began
    print(
        f"{len(deaths)} deaths at {len(handover.times)} messages of the handover of seed {seed} in {seconds:.1f} s, "
        f"{failed} with a violation"
    )
    return not failed


def trace(seed: int, classes: Mapping[str, str], *, replicas: bool = False) -> bool:
    """Prints one seed's deliveries and faults, in order. Returns whether it held."""
    outcome = EngineSimulation(seed, classes=classes, replicas=replicas, keep_trace=True).run()
    print("\n".join(outcome.trace or ()))
    print(f"{outcome}\ndigest {outcome.digest}")
    return outcome.violation is None
