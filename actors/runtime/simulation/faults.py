"""Faults of a simulation, drawn beforehand from the seed, so that a failing run can be shortened by leaving
some out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Kind = Literal["kill", "host", "crash", "hang", "stop", "clog", "cut", "split", "break", "slow"]
WEIGHTS: dict[Kind, float] = {
    **{"kill": 4.0, "crash": 4.0, "host": 2.0, "hang": 2.4, "stop": 0.8},
    **{"clog": 0.4, "cut": 0.4, "split": 0.4, "break": 3.0, "slow": 0.4},
}
KINDS: tuple[Kind, ...] = tuple(WEIGHTS)

# The share of runs without any fault.
CALM_SHARE = 0.2
# Faults of every other run.
FAULTS_MIN, FAULTS_MAX = 3, 17
# Breaks are unnoticed for this share of the time that other faults last.
BREAK_SHARE = 0.15


@dataclass(frozen=True)
class Fault:
    """A fault, `at` so many seconds after the topology is up.

    Attributes:
        kind: `kill` a node's process, or those of a `host` at once; `crash` an actor, or let it `hang` in a
            blocking function that never returns; `stop` a process for a while. For a while, deliver envelopes
            slowly in one direction between two nodes (`clog`), none in one direction (`cut`) or in both (`split`),
            or slowly to one node from any (`slow`); `break` a connection.
        target, other: nodes, or the actor that crashes.
        seconds: the duration.
        when: the moment that it waits for; see `Simulation`.
    """

    at: float
    kind: Kind
    target: str
    other: str = ""
    seconds: float = 0.0
    when: str = ""

    def __str__(self) -> str:
        to = f" -> {self.other}" if self.other else ""
        lasting = f" for {self.seconds:.3f} s" if self.seconds else ""
        return f"{self.at:.3f} s: {self.kind} {self.target}{to}{lasting}{self.when and f', {self.when}'}"


def draw_faults(
    random: Random,
    seconds: float,
    root: str,
    homes: Mapping[str, str],
    *,
    targets: Sequence[str] | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    hanging: Sequence[str] = (),
    moments: Sequence[str] = ("",),
) -> list[Fault]:
    """Return faults within `seconds`, in their order. Some runs have none; in the others some kinds are left
    out.

    Args:
        root: this node is clogged and cut off, but never dies.
        homes: the node of each actor.
        targets: actors to strike, by themselves or with their process, as often as each is named; None is all
            alike.
        pairs: pairs of actors whose nodes are cut off from each other; None is any two.
        hanging: actors whose hanging something detects.
        moments: the moments that faults wait for.
    """
    nodes = list(dict.fromkeys([root, *homes.values()]))
    others = nodes[1:]
    if random.random() < CALM_SHARE or not others:
        return []
    named = itertools.combinations(homes, 2) if pairs is None else pairs
    apart = [(homes[one], homes[other]) for one, other in named if homes[one] != homes[other]]
    weights = [weight * random.choice((0.0, 0.5, 1.0)) for weight in WEIGHTS.values()]
    weights[random.randrange(4)] += 0.5  # one of those that are always there
    lasting_max, faults = random.uniform(0.05, 1.0), []
    for _ in range(random.randint(FAULTS_MIN, FAULTS_MAX)):
        kind = random.choices(KINDS, weights)[0]
        if kind == "hang" and not hanging:
            kind = "crash"
        at, when = random.uniform(0.0, seconds), random.choice(moments)
        lasting = random.uniform(0.0, lasting_max)
        actor = random.choice(targets or list(homes))
        ends = random.choice(apart) if apart else (random.choice(others), root)
        one, other = random.sample(ends, 2)
        match kind:
            case "kill" | "stop" if homes[actor] != root:
                fault = Fault(at, kind, homes[actor], seconds=lasting * (kind == "stop"), when=when)
            case "kill" | "stop" | "crash":
                fault = Fault(at, "crash", actor, when=when)
            case "hang":
                fault = Fault(at, kind, random.choice(list(hanging)), when=when)
            case "host":
                some = random.sample(others, random.randint(min(2, len(others)), len(others)))
                fault = Fault(at, kind, ",".join(sorted(some)), when=when)
            case "slow":
                fault = Fault(at, kind, one, seconds=lasting, when=when)
            case _:
                share = BREAK_SHARE if kind == "break" else 1.0
                fault = Fault(at, kind, one, other, lasting * share, when)
        faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at)
