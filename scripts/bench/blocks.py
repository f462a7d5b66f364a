"""`pageant bench blocks`: three figures of the block manager's core, without a model.

blocks     allocated, hashed, indexed and freed per second, by prompts that share nothing
exchange   what a step of decoding rows costs
random     operations at random, after which no block may be lost
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import typer

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.protocol.allocation import Admission, Assign
from pageant.protocol.arrays import int32, int64
from pageant.scripts.bench.report import Json, publish

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


def run_random(operations: int, seed: int = 0, num_blocks: int = 512, block_size: int = 4) -> int:
    """Admissions, growth and ends at random, of prompts that often begin alike; returns how many tokens were
    found in the cache. What is held is checked now and then, and at the end every block must be free."""
    chance = random.Random(seed)
    scheduler = _Scheduler(num_blocks, block_size)
    core = scheduler.core
    stems = [[chance.randrange(3) for _ in range(60)] for _ in range(4)]
    lengths: dict[int, int] = {}
    serial = done = 0
    while done < operations:
        freed = [one for one in lengths if chance.random() < 0.1]
        for one in freed:
            del lengths[one]
        grown = [(one, length + 1) for one, length in lengths.items() if chance.random() < 0.9]
        learned = [(one, [chance.randrange(3)]) for one, _ in grown]
        admissions = []
        for _ in range(chance.randint(0, 6)):
            serial += 1
            stem = chance.choice(stems)[: chance.randint(1, 60)]
            admissions.append((serial, [*stem, chance.randrange(3)]))
        answer = core.assign(scheduler.request(freed, learned, grown, admissions))
        lengths.update(grown[: answer.num_grown])
        for one, _ in grown[answer.num_grown :]:
            # Told of a token that it has no slot for: gone, as a preempted one would be.
            core.assign(scheduler.request(freed=[one]))
            del lengths[one]
        prompts = dict(admissions)
        lengths.update((grant.serial, len(prompts[grant.serial])) for grant in answer.admitted)
        done += len(freed) + len(grown) + len(admissions)
        if scheduler.step % 1000 == 0:
            core.check_integrity()
            wasted, sequences = core.statistics().slots_wasted, len(lengths)
            assert wasted <= sequences * (block_size - 1), f"{wasted} slots wasted by {sequences} sequences"
    core.assign(scheduler.request(freed=list(lengths)))
    core.check_integrity()
    assert core.pool.num_free == num_blocks, f"{num_blocks - core.pool.num_free} blocks were lost"
    return core.statistics().tokens_hit


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(REPEATS))


def bench(
    operations: Annotated[int, typer.Option(help="How many at random.")] = 1_000_000,
    json: Json = None,
) -> None:
    """The block manager's core alone: blocks per second, a step's exchange, operations at random."""
    rates = {caching: _median(partial(measure_blocks, caching)) for caching in (True, False)}
    exchanges = {rows: 1e6 * _median(partial(measure_exchange, rows)) for rows in (256, 1024, 4096)}
    began = time.perf_counter()
    hit = run_random(operations)
    seconds = time.perf_counter() - began
    figures = {
        "blocks_per_second": round(rates[True]),
        "blocks_per_second_without_prefix_caching": round(rates[False]),
        "exchange_microseconds": {str(rows): round(took, 1) for rows, took in exchanges.items()},
        "random": {
            "operations": operations,
            "seconds": round(seconds, 1),
            "tokens_hit": hit,
            "blocks_lost": 0,
        },
    }
    lines = [
        f"{rate:12,.0f} blocks per second, {'with' if caching else 'without'} prefix caching"
        for caching, rate in rates.items()
    ]
    lines += [
        f"{took:12,.0f} us for an exchange about {rows} rows, {took / rows:.2f} per row"
        for rows, took in exchanges.items()
    ]
    lines.append(
        f"{operations:12,} operations at random in {seconds:.1f} s: no block lost, {hit:,} tokens hit"
    )
    publish(figures, lines, json)
