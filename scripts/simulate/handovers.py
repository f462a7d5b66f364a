"""Deaths at each moment of a handover: one actor dies just before or after one of its messages, in a run of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pageant.actors.runtime.simulation import Fault
from pageant.scripts.simulate.engine import EngineSimulation
from pageant.scripts.simulate.runs import run_all
from pageant.scripts.simulate.topology import ROOT

REQUESTS = 3
MOMENT_SECONDS = 1e-6
"""Time between a message and the death before or after it: less than between any two messages but a few."""
UNRELATED = ("Lease", "Statistics", "Directory", "Replicas")
VICTIMS = (
    *("store/0", "store/1", "router"),
    *("replica-0/scheduler", "replica-0/blocks", "replica-0/executor/0"),
    *("replica-1/scheduler", "replica-1/blocks", "replica-1/executor/0"),
)


@dataclass(frozen=True)
class Handover:
    """First handover of a calm run with a few requests.

    Attributes:
        homes: the node of each actor.
        times: of its messages between nodes, in seconds after the topology was up: from the submission of a prompt to
            the first step after its blocks have come to the other replica.
    """

    seed: int
    homes: dict[str, str]
    times: tuple[float, ...]

    def deaths(self, victims: Sequence[str] = VICTIMS) -> Iterator[Fault]:
        """Yield each death of a victim with its process, or without it where that is the root's, at each message."""
        for victim in victims:
            home = self.homes[victim]
            for time in self.times:
                for moment in (time - MOMENT_SECONDS, time + MOMENT_SECONDS):
                    yield Fault(moment, "crash", victim) if home == ROOT else Fault(moment, "kill", home)

    def violation(self, death: Fault) -> str | None:
        """Return what a death breaks; None where every request ends well, and nothing is left of any."""
        return _simulation(self.seed, [death]).run().violation

    def violations(self, deaths: Sequence[Fault], jobs: int) -> Iterator[str | None]:
        """Yield what each death breaks, in order; see `violation`."""
        return run_all(self.violation, deaths, jobs)


def find_handover(seed: int) -> Handover:
    """Return the first handover of a seed's engine without faults: from its first replica to its second.

    Raises:
        ValueError: there is none, or nothing is restored after it.
    """
    simulation = _simulation(seed, [], keep_trace=True)
    lines = simulation.run().trace or []
    began = simulation.began
    at = [index for index, line in enumerate(lines) if " Submit " in line]
    later = [index for index in at if "-> replica-1/scheduler" in lines[index]]
    earlier = [index for index in at if "-> replica-0/scheduler" in lines[index]]
    resumed = [index for index in later if any(one < index for one in earlier)]
    came = [index for index, line in enumerate(lines) if " StoredBlocksArrived replica-1/" in line]
    ends = [index for index in came if resumed and index > resumed[0]]
    if not ends:
        raise ValueError(
            f"seed {seed} hands nothing over from replica-0/ to replica-1/ whose blocks are restored"
        )
    first = max(one for one in earlier if one < resumed[0])
    window = [line for line in lines[first : ends[0] + 8] if not any(kind in line for kind in UNRELATED)]
    return Handover(seed, simulation.homes, tuple(float(line.split()[0]) - began for line in window))


def _simulation(seed: int, faults: Sequence[Fault], *, keep_trace: bool = False) -> EngineSimulation:
    return EngineSimulation(seed, faults=faults, replicas=True, num_requests=REQUESTS, keep_trace=keep_trace)
