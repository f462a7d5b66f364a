"""Resource that binds a candidate: the one of which twice as much serves most requests more, in model time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pageant.scripts.planning.search import RATE_STEPS
from pageant.scripts.tuning.simulating import Resources, Trial
from pageant.scripts.tuning.space import Candidate

TWICE = {
    "KV room": Resources(kv_room=2.0),
    "compute": Resources(compute=2.0),
    "memory bandwidth": Resources(bandwidth=2.0),
    "host": Resources(host=2.0),
}
"""Twice of each resource. Faster steps free memory sooner, too: where both win as much, KV room is named."""
HELPS = {
    "compute": "more or faster cores, shorter prompts or prefixes that they share, replicas elsewhere",
    "memory bandwidth": "quantised weights (--allow-quantization int8,int4), 8-bit KV, speculation, replicas elsewhere",
    "host": "a core that computes nothing (fewer threads), fewer and larger steps, clients and HTTP on other cores",
    "KV room": "more memory for KV (kv_cache_memory), 8-bit KV (kv_cache_dtype), fewer requests at a time",
}
GAIN_MIN = 0.01
"""Share of requests that a resource must win to be what binds; else that whose double leaves most to spare."""

Run = Callable[[Candidate, float, Resources], Trial]
"""Serves a candidate in model time, at so many times the load, on a machine with other resources."""


@dataclass(frozen=True)
class Binding:
    """Resource that binds a candidate.

    Attributes:
        factor: times the load at which it was looked for: 1, or where the level breaks.
        breaks: whether the level breaks there.
        share: of requests that hold the level there.
        shares: the same with twice as much of each resource.
    """

    name: str
    factor: float
    breaks: bool
    share: float
    shares: dict[str, float]

    def lines(self) -> list[str]:
        """Return the same in words."""
        load = "this load" if self.factor == 1 else f"{self.factor:g} times this load"
        where = f"at {load}, where the level breaks first," if self.breaks else f"at {load}"
        gains = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        return [
            f"{self.name} binds: {where} {self.share:.0%} of requests hold the level in model time; "
            f"with twice as much of it {self.shares[self.name]:.0%} ({gains})",
            f"what would help: {HELPS[self.name]}",
        ]


def binding(candidate: Candidate, run: Run) -> Binding:
    """Find what binds a candidate: at this load if that breaks the level, else at the first of more that does."""
    for factor in (1.0, *RATE_STEPS):
        here = run(candidate, factor, Resources())
        if not here.holds:
            break
    found = {name: run(candidate, factor, machine) for name, machine in TWICE.items()}
    most = max(found.values(), key=lambda trial: trial.share).share
    if most - here.share >= GAIN_MIN:
        name = max(found, key=lambda one: found[one].share)
    else:
        name = min(found, key=lambda one: found[one].worst)
    shares = {one: round(trial.share, 4) for one, trial in found.items()}
    return Binding(name, factor, not here.holds, round(here.share, 4), shares)
