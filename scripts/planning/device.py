"""A device in model time: computes plans in their order, each step as long as steps of its size take.

Plans may have several steps, so that the cores are asked once for many tokens. Such a plan ends where single steps
would have a plan of other rows: as many steps after a request has ended or come as had been planned ahead by then.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pageant.protocol.arrays import int32
from pageant.protocol.stepping import StepPlan, StepResult
from pageant.scripts.replay.costs import StepCosts, StepSize

EPOCH = 1
END_TOKEN = 0
TOKEN = 1
"""The token of all outputs, which tell nothing here; `END_TOKEN` is the last."""


class Said(NamedTuple):
    """New output of a request."""

    number: int
    """The request's."""
    times: Sequence[float]
    """Seconds at which its tokens came, one after another."""


class Finished(NamedTuple):
    """A plan that is over."""

    result: StepResult
    said: list[Said]
    tokens: int
    """Tokens that each of its steps computed."""
    durations: list[float]
    """Seconds of each of its steps."""


class PlannedDevice:
    """A device with the plans that it has yet to compute. Times (`now`) are seconds of model time.

    Args:
        costs: of a step, by its size.
        speed: how many times as fast as `costs` says the device is.
        async_scheduling, short_step_seconds: of the scheduler, which say how many steps are planned ahead.
    """

    def __init__(
        self, costs: StepCosts, speed: float, *, async_scheduling: bool, short_step_seconds: float
    ) -> None:
        self._costs, self._speed = costs, speed
        self._async_scheduling, self._short_step_seconds = async_scheduling, short_step_seconds
        self.busy_seconds = 0.0
        # Seconds at which the plan under way is over; None while the device rests.
        self.next_at: float | None = None
        # Plans that are not computed, in order; the first is under way if `next_at` is set.
        self._plans: deque[StepPlan] = deque()
        # Of the plan under way: when it began, when each of its steps is over, and the steps that may begin until the
        # scheduler has planned anew.
        self._began_at = 0.0
        self._ends: list[float] = []
        self._limit = math.inf
        # Steps that may still begin of the plans up to this number; a plan that continues one that ended early is void.
        self._allowed, self._allowed_up_to = math.inf, 0
        self._ended_early = False
        # Seconds of the last step that was computed.
        self._step_seconds = math.inf
        # The luck of the steps to come, some of which was drawn for steps that were not computed.
        self._luck = costs.luck()
        self._drawn: deque[float] = deque()
        # That of the steps of the plan under way.
        self._used: list[float] = []
        # Tokens of the whole output of each open request, by number; the replica's own.
        self._outputs: dict[int, int] = {}
        # The request of each row, the last row of each request, and the tokens that a row still has to say: 0 or less
        # once its request has ended.
        self._numbers: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._left: dict[int, int] = {}

    def add(self, plan: StepPlan, outputs: dict[int, int]) -> None:
        """Queue a plan.

        Args:
            outputs: the tokens of the whole output of each request, by number, which is also its seed.
        """
        self._plans.append(plan)
        self._outputs = outputs

    @property
    def last_plan(self) -> int | None:
        """Return the number of the last plan that is to be computed; None while the device rests."""
        return self._plans[-1].number if self._plans else None

    def drop(self, number: int) -> None:
        """Say no more of a request, all of whose plans are computed."""
        row = self._rows.pop(number, None)
        if row is not None and self._numbers[row] == number:
            self._left[row] = 0

    def begin(self, now: float) -> None:
        """Compute the first plan, if there is one and the device rests."""
        if self.next_at is not None or not self._plans:
            return
        plan = self._plans[0]
        for one in plan.new:
            assert one.params.seed is not None, "its number"
            self._numbers[one.row], self._rows[one.params.seed] = one.params.seed, one.row
            said = len(one.token_ids) - one.num_prompt_tokens
            self._left[one.row] = self._outputs.get(one.params.seed, 0) - said
        self._began_at, self._limit = now, math.inf
        allowed = self._allowed if plan.number <= self._allowed_up_to else math.inf
        steps = plan.num_steps
        if plan.continues and self._ended_early:
            steps = 0
        elif _may_end_early(plan):
            end = max(0, min(map(self._left.__getitem__, plan.rows.tolist())))
            if end <= steps:
                self._limit = end + self._depth
            self._limit = max(min(self._limit, allowed), 0 if plan.continues else 1)
            steps = int(min(steps, self._limit))
        self._ends = self._times(plan, steps)
        self.next_at = self._ends[-1] if steps else now

    def cut(self, number: int, now: float) -> None:
        """End the plans up to a number as soon as what single steps would have planned by `now` is computed."""
        if self.next_at is None:
            return
        plan = self._plans[0]
        if plan.number > number:
            return
        begun = min(len(self._ends), bisect.bisect_right(self._ends, now) + 1)
        if begun > 1:
            self._step_seconds = self._durations[begun - 2]
        self._limit = min(self._limit, begun + self._depth)
        steps = int(min(len(self._ends), self._limit)) if _may_end_early(plan) else len(self._ends)
        self._drawn.extendleft(reversed(self._used[steps:]))
        del self._ends[steps:], self._used[steps:]
        self.next_at = self._ends[-1] if steps else now

    def finish(self) -> Finished:
        """End the plan that is over."""
        plan, ends, durations = self._plans.popleft(), self._ends, self._durations
        steps = len(ends)
        rows = plan.rows[plan.draws]
        tokens = np.full((steps, len(rows)), TOKEN, np.int32)
        said = []
        for column, row in enumerate(rows.tolist()):
            left = self._left[row]
            if 0 < left <= steps:
                tokens[left - 1, column] = END_TOKEN
            if 0 < left <= steps:
                self._rows.pop(self._numbers[row], None)
            if left > 0 and steps:
                said.append(Said(self._numbers[row], ends if left >= steps else ends[:left]))
            self._left[row] = left - steps
        self._ended_early = steps < plan.num_steps
        self._allowed = self._limit - steps
        self._allowed_up_to = self._plans[-1].number if self._plans else 0
        if steps:
            self._step_seconds = durations[-1]
        seconds = sum(durations)
        self.busy_seconds += seconds
        self.next_at = None
        result = StepResult(
            number=plan.number,
            epoch=EPOCH,
            rows=rows,
            token_ids=int32(tokens.ravel()),
            seconds=seconds,
            num_steps=steps,
        )
        return Finished(result, said, int(plan.num_tokens.sum()), durations)

    def forget(self, number: int, now: float) -> Said | None:
        """Say no more of a request, unless it is over by `now`, and return what no result has told yet.

        None tells that it is over: its last token is on its way.
        """
        row = self._rows.get(number)
        if row is None or self._numbers[row] != number:
            return Said(number, ())
        times: Sequence[float] = ()
        if self.next_at is not None and row in self._plans[0].rows[self._plans[0].draws].tolist():
            times = self._ends[: bisect.bisect_right(self._ends, now)]
        if len(times) >= self._left[row]:
            return None
        del self._rows[number]
        self._left[row] = 0
        return Said(number, times)

    @property
    def _depth(self) -> int:
        """Return how many single steps would be planned behind the one that is computed."""
        if not self._async_scheduling:
            return 0
        return 2 if self._step_seconds < self._short_step_seconds else 1

    @property
    def _durations(self) -> list[float]:
        """Return the seconds of each step of the plan under way."""
        return [end - begin for begin, end in itertools.pairwise([self._began_at, *self._ends])]

    def _times(self, plan: StepPlan, steps: int) -> list[float]:
        """Return when each of the first steps of a plan is over."""
        while len(self._drawn) < steps:
            self._drawn.append(next(self._luck))
        self._used = [self._drawn.popleft() for _ in range(steps)]
        size = StepSize.of(plan)
        factors = [self._costs.factor(size, luck) for luck in self._used]
        seconds, more = self._costs.expected(size), self._costs.fitted.context_token * size.rows
        each = (seconds + more * np.arange(steps)) * factors / self._speed
        ends: list[float] = (self._began_at + np.cumsum(each)).tolist()
        return ends


def _may_end_early(plan: StepPlan) -> bool:
    return plan.num_steps > 1 or plan.continues
