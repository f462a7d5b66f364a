"""`pageant bench overhead`: what a step costs in the cores of the scheduler and of the block manager.

Both are driven as their actors drive them, message by message, with an executor that answers at once; only
the processor's time inside of the two counts. Without a model there is nothing to hide behind: this is what a step
takes besides computing, on one core, whether it is overlapped or not.

    rows      a step of so many decoding requests, fitted as a + b x rows by least squares
    waiting   a step of 256 rows that end and are replaced, while 100 or 100,000 more requests wait; how long each
              runs is drawn as it runs, so that a policy that favours some has as many coming and going
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from dataclasses import dataclass
from time import thread_time
from typing import Annotated, Any

import numpy as np
import typer

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.core import BLOCKS, DETOKENIZER, SchedulerCore
from pageant.actors.scheduler.policies import POLICIES, make_policy
from pageant.protocol.arrays import Int32Vector, freeze, int32
from pageant.protocol.message import Message
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Submit
from pageant.protocol.stepping import ExecutorReady, StepPlan, StepResult
from pageant.scripts.bench.progress import rounds
from pageant.scripts.report import Json, publish, table

ROWS = tuple(2**power for power in range(13))
BLOCK_SIZE = 16
PROMPT_MAX = 48  # tokens
WARM_STEPS = 40  # the running of all prompts, and of what Python specialises
BATCH, FEW, MANY = 256, 100, 100_000
OUTPUT_MEAN, OUTPUT_MAX = 64, 768  # tokens of a request's output
TENANTS = 64
EPOCH = 1
END_TOKEN = 0


@dataclass
class Seconds:
    """Seconds of processor time inside of each core."""

    scheduler: float = 0.0
    blocks: float = 0.0

    def total(self) -> float:
        """Return the sum of both."""
        return self.scheduler + self.blocks


class Cores:
    """A scheduler with its block manager, and an executor and a detokenizer that answer at once.

    Args:
        most_tokens: of any request, prompt and output.
        ending: the chance of a token to be an end token.
    """

    def __init__(self, policy: str, rows: int, most_tokens: int, ending: float = 0.0) -> None:
        limits = Limits(
            max_num_seqs=rows,
            max_num_batched_tokens=rows * PROMPT_MAX,  # all at once, if need be
            max_model_len=most_tokens,
            end_tokens=frozenset((END_TOKEN,)),
        )
        num_blocks = (rows + 2) * -(-most_tokens // BLOCK_SIZE)
        self.core = SchedulerCore(make_policy(policy), limits)
        self.blocks = Allocation(BlockPool(num_blocks), BLOCK_SIZE)
        self.seconds = Seconds()
        self.ended = 0
        self._plans: deque[StepPlan] = deque()
        self._chance, self._ending = np.random.default_rng(0), ending
        self.core.executor_ready(
            ExecutorReady(
                epoch=EPOCH,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_num_seqs=rows,
                max_model_len=most_tokens,
                device="none",
                dtype="none",
            )
        )
        self.core.pool_ready(EPOCH, 1)

    def submit(self, requests: list[Submit]) -> Seconds:
        """Submit requests. Return the seconds that both cores spend on them."""
        self.seconds = Seconds()
        began = thread_time()
        for request in requests:
            self.core.submit(request, time.monotonic())
        self.seconds.scheduler += thread_time() - began
        self._pump()
        return self.seconds

    def step(self) -> Seconds:
        """Answer the oldest plan. Return the seconds that both cores spend until they wait for the next answer."""
        self.seconds = Seconds()
        plan = self._plans.popleft()
        rows = plan.rows[plan.draws]
        result = StepResult(
            number=plan.number,
            epoch=EPOCH,
            rows=rows,
            token_ids=self._draw(len(rows)),
            seconds=0.0,
        )
        began = thread_time()
        self.core.stepped(result, time.monotonic())
        self.seconds.scheduler += thread_time() - began
        self._pump()
        return self.seconds

    def _draw(self, count: int) -> Int32Vector:
        tokens = self._chance.integers(1, 1 << 17, count, dtype=np.int32)
        tokens[self._chance.random(count) < self._ending] = END_TOKEN
        return tokens

    def _pump(self) -> None:
        """Carries messages until both are silent."""
        while messages := self._taken():
            for address, message in messages:
                freeze(message)
                if address == BLOCKS:
                    began = thread_time()
                    granted = self.blocks.assign(message)  # type: ignore[arg-type]
                    between = thread_time()
                    self.core.assigned(granted, time.monotonic())
                    self.seconds.blocks += between - began
                    self.seconds.scheduler += thread_time() - between
                elif address == DETOKENIZER:
                    self.ended += len(message.finished)  # type: ignore[attr-defined]
                    began = thread_time()
                    self.core.acknowledged(message.number)  # type: ignore[attr-defined]
                    self.seconds.scheduler += thread_time() - began
                elif isinstance(message, StepPlan):
                    self._plans.append(message)

    def _taken(self) -> list[tuple[str, Message]]:
        began = thread_time()
        messages = self.core.take_outbox()
        self.seconds.scheduler += thread_time() - began
        return messages


class Requests:
    """Any number of requests, no two alike."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest  # tokens of output
        self._chance = random.Random(0)
        self._prompts = np.random.default_rng(0)
        self._count = 0

    def take(self, count: int) -> list[Submit]:
        """The next ones."""
        return [self._next() for _ in range(count)]

    def _next(self) -> Submit:
        self._count += 1
        chance = self._chance
        return Submit(
            request_id=str(self._count),
            frontend="frontend",
            prompt_token_ids=int32(self._prompts.integers(1, 1 << 17, chance.randint(16, PROMPT_MAX))),
            params=SamplingParams(max_tokens=chance.randint(self._shortest, self._longest), seed=0),
            priority=chance.randint(0, 3),
            tenant=f"tenant-{chance.randrange(TENANTS)}",
            deadline=chance.uniform(1000, 2000),
        )


def decoding(rows: int, steps: int) -> list[Seconds]:
    """Return the overhead of each step, when so many requests decode and nobody waits."""
    output = WARM_STEPS + steps + 8
    cores = Cores("fcfs", rows, most_tokens=PROMPT_MAX + output)
    cores.submit(Requests(output, output).take(rows))
    while cores.core.num_waiting:
        cores.step()
    for _ in range(WARM_STEPS):
        cores.step()
    found = [cores.step() for _ in range(steps)]
    assert cores.core.num_running == rows and not cores.ended, "all of them decode all the while"
    return found


class Crowd:
    """A batch whose requests end and are replaced, and those that wait behind it."""

    def __init__(self, policy: str, waiting: int) -> None:
        self.cores = Cores(policy, BATCH, most_tokens=PROMPT_MAX + OUTPUT_MAX, ending=1 / OUTPUT_MEAN)
        self._requests = Requests(OUTPUT_MAX // 2, OUTPUT_MAX)
        self.cores.submit(self._requests.take(BATCH + waiting))
        for _ in range(WARM_STEPS):
            self.step()

    def step(self) -> float:
        """Seconds of a step; as many requests come as have ended."""
        coming = self._requests.take(self.cores.ended)
        self.cores.ended = 0
        seconds = self.cores.step().total()
        if coming:
            seconds += self.cores.submit(coming).total()
        return seconds


def waiting(policy: str, steps: int, count: int) -> dict[str, float]:
    """Milliseconds of a step behind which few and many wait, in turn, and the median of their ratios."""
    few, many = Crowd(policy, FEW), Crowd(policy, MANY)
    pairs = [
        (sum(few.step() for _ in range(steps)) / steps, sum(many.step() for _ in range(steps)) / steps)
        for _ in rounds(f"policy {policy}", count)
    ]
    return {
        f"milliseconds_{FEW}": round(1e3 * statistics.median(one for one, _ in pairs), 4),
        f"milliseconds_{MANY}": round(1e3 * statistics.median(other for _, other in pairs), 4),
        "ratio": round(statistics.median(other / one for one, other in pairs), 3),
    }


def fit(milliseconds: dict[int, float]) -> tuple[float, float]:
    """a and b of a + b x rows by least squares, in microseconds."""
    rows = np.array(list(milliseconds), float)
    slope, intercept = np.polyfit(rows, 1e3 * np.array(list(milliseconds.values())), 1)
    return float(intercept), float(slope)


def bench(
    steps: Annotated[int, typer.Option(help="Of each number of rows.")] = 128,
    rounds_: Annotated[
        int, typer.Option("--rounds", help="Pairs of runs, with few and with many waiting.")
    ] = 11,
    json: Json = None,
) -> None:
    """The cores of scheduler and block manager alone: a step's cost by rows, and by requests that wait."""
    found = {ROWS[i]: _summary(decoding(ROWS[i], steps)) for i in rounds("a step by rows", len(ROWS))}
    intercept, slope = fit({rows: row["mean_milliseconds"] for rows, row in found.items()})
    policies = {policy: waiting(policy, steps, rounds_) for policy in POLICIES}
    figures: dict[str, Any] = {
        "steps": steps,
        "rows": {str(rows): row for rows, row in found.items()},
        "fit_microseconds": {"a": round(intercept, 2), "b": round(slope, 4)},
        "waiting": policies,
    }
    lines = table(
        ("rows", "ms a step", "scheduler", "blocks", "slowest", "us a row"),
        [
            (
                rows,
                *(f"{value:.3f}" for value in row.values()),
                f"{1e3 * row['mean_milliseconds'] / rows:.2f}",
            )
            for rows, row in found.items()
        ],
    )
    lines += ["", f"a step takes {intercept:.1f} us + {slope:.3f} us x rows", ""]
    lines += table(
        ("policy", f"ms, {FEW} waiting", f"ms, {MANY} waiting", "ratio"),
        [(policy, *row.values()) for policy, row in policies.items()],
    )
    publish(figures, lines, json)


def _summary(steps: list[Seconds]) -> dict[str, float]:
    """Milliseconds of a step: mean, each core's, and of the slowest."""
    milliseconds = {
        "mean_milliseconds": statistics.fmean(one.total() for one in steps),
        "scheduler_milliseconds": statistics.fmean(one.scheduler for one in steps),
        "blocks_milliseconds": statistics.fmean(one.blocks for one in steps),
        "slowest_milliseconds": max(one.total() for one in steps),
    }
    return {name: round(1e3 * seconds, 4) for name, seconds in milliseconds.items()}
