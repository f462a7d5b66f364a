"""The workloads that engines are compared on: prompts as token ids from a fixed seed, and output lengths.

The prompts are the same, number for number, as those that the peers' own runners draw.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pageant.protocol.errors import BadRequest

FIRST_ID, END_ID = 10, 16000  # prompts draw ids from this range, which every model that is compared has
SMALL_END_ID = 4000  # which the demo has too


def random_ids(chance: random.Random, count: int) -> list[int]:
    """Token ids that every model has."""
    return chance.choices(range(FIRST_ID, SMALL_END_ID), k=count)


def end_id_of(model: str) -> int:
    """Return where ids of prompts end: at END_ID, or at the model's vocabulary where it is smaller."""
    from pageant.models.checkpoint import Checkpoint, resolve

    return min(END_ID, Checkpoint(resolve(model)).spec().vocab_size)


@dataclass(frozen=True)
class Workload:
    """`requests` prompts of `shortest` to `longest` tokens, each followed by `output_tokens`."""

    requests: int
    shortest: int
    longest: int
    output_tokens: int

    def __str__(self) -> str:
        lengths = (
            f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest} to {self.longest}"
        )
        return (
            f"{self.requests} requests at once, prompts of {lengths} tokens, answers of {self.output_tokens}"
        )

    def prompts(self, seed: int = 0, end_id: int = END_ID) -> list[list[int]]:
        """The prompts, of ids below `end_id`. For each, its length is drawn just before its ids."""
        rng = random.Random(seed)
        return [
            [rng.randrange(FIRST_ID, end_id) for _ in range(rng.randint(self.shortest, self.longest))]
            for _ in range(self.requests)
        ]


WORKLOADS = {
    "batch": Workload(16, 128, 512, 32),  # continuous batching: prefill and decode together
    "single": Workload(1, 128, 128, 64),  # one stream: memory bandwidth
    "long": Workload(1, 2048, 2048, 8),  # prefill: arithmetic
    "overhead": Workload(512, 16, 64, 64),  # everything that is not the model
}


def workload(name: str) -> Workload:
    """The workload of that name.

    Raises:
        BadRequest: there is none.
    """
    if name not in WORKLOADS:
        raise BadRequest(f"no workload {name!r}; expected {', '.join(WORKLOADS)}", "workload")
    return WORKLOADS[name]
