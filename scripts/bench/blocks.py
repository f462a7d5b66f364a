"""`pageant bench blocks`: three figures of the block manager's core, without a model.

blocks     allocated, hashed, indexed and freed per second, by prompts that share nothing
exchange   what a step of decoding rows costs
random     operations at random, with windows and tiers, after which no block may be lost
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import typer

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.protocol.allocation import Admission, Assign
from pageant.protocol.arrays import int32, int64
from pageant.scripts.bench.progress import rounds
from pageant.scripts.report import Json, publish
from pageant.scripts.samples.random_blocks import run

BLOCK_SIZE = 16
REPEATS = 5
VOCABULARY = 151_936


class _Scheduler:
    """Asks for what it is told to ask for."""

    def __init__(self, num_blocks: int, block_size: int = BLOCK_SIZE, caching: bool = True) -> None:
        self.core = Allocation(BlockPool(num_blocks, caching), block_size)
        self.step = 0

    def request(
        self,
        freed: Sequence[int] = (),
        learned: Sequence[tuple[int, list[int]]] = (),
        grown: Sequence[tuple[int, int]] = (),
        admissions: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> Assign:
        self.step += 1
        return Assign(
            step=self.step,
            epoch=1,
            computed_step=self.step - 1,
            learned_serials=int64([serial for serial, _ in learned]),
            learned_counts=int32([len(tokens) for _, tokens in learned]),
            token_ids=int32([token for _, tokens in learned for token in tokens]),
            freed=int64(freed),
            grow_serials=int64([serial for serial, _ in grown]),
            grow_lengths=int32([length for _, length in grown]),
            admissions=tuple(
                Admission(serial=serial, token_ids=int32(tokens)) for serial, tokens in admissions
            ),
            admission_tokens=2**30,
        )


def measure_blocks(caching: bool, prompt_tokens: int = 1024, prompts: int = 200) -> float:
    """Blocks per second, from admission to the end, where every block taken evicts a cached one."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (prompts, prompt_tokens))
    blocks = prompt_tokens // BLOCK_SIZE
    scheduler = _Scheduler(num_blocks=4 * blocks, caching=caching)
    requests = [
        scheduler.request(freed=[index - 1], admissions=[(index, tokens[index])]) for index in range(prompts)
    ]
    began = time.perf_counter()
    for request in requests:
        scheduler.core.assign(request)
    return prompts * blocks / (time.perf_counter() - began)


def measure_exchange(rows: int, steps: int = 64) -> float:
    """Seconds of one exchange about so many decoding rows."""
    scheduler = _Scheduler(num_blocks=rows * 8)
    prompts = np.random.default_rng(0).integers(0, VOCABULARY, (rows, 20))
    scheduler.core.assign(scheduler.request(admissions=list(enumerate(prompts))))
    requests = [
        scheduler.request(
            learned=[(row, [step]) for row in range(rows)],
            grown=[(row, 21 + step) for row in range(rows)],
        )
        for step in range(steps)
    ]
    began = time.perf_counter()
    for request in requests:
        scheduler.core.assign(request)
    return (time.perf_counter() - began) / steps


def _words(seen: Counter[str]) -> dict[str, int]:
    return {what.replace(" ", "_"): count for what, count in seen.items()}


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in rounds("a core alone", REPEATS))


def bench(
    operations: Annotated[int, typer.Option(help="How many at random.")] = 1_000_000,
    json: Json = None,
) -> None:
    """The block manager's core alone: blocks per second, a step's exchange, operations at random."""
    rates = {caching: _median(partial(measure_blocks, caching)) for caching in (True, False)}
    exchanges = {rows: 1e6 * _median(partial(measure_exchange, rows)) for rows in (256, 1024, 4096)}
    print(f"{operations:,} operations at random, about a minute a million", file=sys.stderr, flush=True)
    began = time.perf_counter()
    seen = run(operations)
    seconds = time.perf_counter() - began
    figures = {
        "blocks_per_second": round(rates[True]),
        "blocks_per_second_without_prefix_caching": round(rates[False]),
        "exchange_microseconds": {str(rows): round(took, 1) for rows, took in exchanges.items()},
        "random": {"seconds": round(seconds, 1), "blocks_lost": 0, **_words(seen)},
    }
    lines = [
        f"{rate:12,.0f} blocks per second, {'with' if caching else 'without'} prefix caching"
        for caching, rate in rates.items()
    ]
    lines += [
        f"{took:12,.0f} us for an exchange about {rows} rows, {took / rows:.2f} per row"
        for rows, took in exchanges.items()
    ]
    happened = ", ".join(
        f"{count:,} {what.replace('_', ' ')}" for what, count in sorted(_words(seen).items())
    )
    lines.append(f"no block lost at random in {seconds:.1f} s: {happened}")
    publish(figures, lines, json)
