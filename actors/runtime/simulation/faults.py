"""What goes wrong in a simulation, drawn beforehand from the seed, so that a failing run can be made shorter by
leaving some of it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Kind = Literal["kill", "host", "crash", "stop", "clog", "cut", "break"]
KINDS: tuple[Kind, ...] = ("kill", "host", "crash", "stop", "clog", "cut", "break")

BREAK_SHARE = 0.3  # of the time of other faults: how long a break goes unnoticed


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, `at` so many seconds after the topology is up.

    Attributes:
        kind: `kill` a node's process, or those of a `host` at once; `crash` an actor; `stop` a process for a while;
            `clog` one direction between two nodes for a while, or `cut` both; `break` a connection.
        target, other: nodes, or the actor that crashes.
        seconds: how long.
    """

    at: float
    kind: Kind
    target: str
    other: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        to = f" <-> {self.other}" if self.other else ""
        lasting = f" for {self.seconds:.3f} s" if self.seconds else ""
        return f"{self.at:.3f} s: {self.kind} {self.target}{to}{lasting}"


@dataclass(frozen=True)
class Rates:
    """How hostile a run is: faults of each kind per second, and how long they last at most."""

    per_second: dict[Kind, float]
    seconds_max: float = 1.0

    @staticmethod
    def draw(random: Random) -> Rates:
        """Some runs are calm, some hostile; each kind may be left out."""
        hostility = random.choice((0.0, 0.5, 1.0, 2.0, 4.0))
        rates: dict[Kind, float] = {
            kind: hostility * random.choice((0.0, 0.5, 1.0)) * random.random() for kind in KINDS
        }
        return Rates(rates, random.uniform(0.05, 1.0))


def draw_faults(
    random: Random, rates: Rates, seconds: float, nodes: Sequence[str], root: str, actors: Sequence[str]
) -> list[Fault]:
    """Faults within so many seconds, in their order. The root node is clogged and cut off, but never dies."""
    faults: list[Fault] = []
    others = [node for node in nodes if node != root]
    for kind, rate in rates.per_second.items():
        at = random.expovariate(rate) if rate > 0 and others else seconds
        while at < seconds:
            lasting = random.uniform(0.0, rates.seconds_max)
            if kind == "crash":
                faults.append(Fault(at, kind, random.choice(actors)))
            elif kind == "kill":
                faults.append(Fault(at, kind, random.choice(others)))
            elif kind == "stop":
                faults.append(Fault(at, kind, random.choice(others), seconds=lasting))
            elif kind == "host":
                some = sorted(random.sample(others, random.randint(1, len(others))))
                faults.append(Fault(at, kind, ",".join(some)))
            elif len(nodes) > 1:
                target, other = random.sample(list(nodes), 2)
                faults.append(
                    Fault(at, kind, target, other, lasting * (BREAK_SHARE if kind == "break" else 1))
                )
            at += random.expovariate(rate)
    return sorted(faults, key=lambda fault: fault.at)
