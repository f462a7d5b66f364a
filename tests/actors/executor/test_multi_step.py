"""Plans of several steps: how far they are computed, and what is done about the rest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.batch.inputs import StepInputs
from pageant.actors.executor.computing import ComputingThread, CutSignal
from pageant.actors.executor.multi_step import MultiStep
from pageant.actors.executor.steps import Step
from pageant.actors.runtime.clock import MonotonicClock
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence, StepPlan
from tests.actors.executor.conftest import plan_of

SCHEDULER = 1
END = 2
PROMPT = (10, 11, 12)


class Drew:
    """Tokens that a step drew."""

    def __init__(self, token_ids: list[int], ready: bool) -> None:
        self.ready = ready
        self._token_ids = np.array(token_ids, np.int64)

    def token_ids(self) -> np.ndarray:
        return self._token_ids


class Executor:
    """A batch whose plans go several steps, and a runner that draws what it is told, or 100, 101, ..."""

    def __init__(self, ready: bool = True) -> None:
        self.batch = Batch(max_num_seqs=2, max_model_len=16, block_size=4, end_tokens=(END,))
        self.cut = CutSignal()
        self.multi_step = MultiStep(self.batch, self.cut)
        self.multi_step.clear(SCHEDULER)
        self.thread = ComputingThread(self, self.cut, MonotonicClock(), soon_seconds=0.0)
        self.launched: list[StepInputs] = []
        self.after: dict[int, Callable[[], None]] = {}  # what happens once so many steps were launched
        self.tokens: dict[int, list[int]] = {}  # that those are to draw
        self._number, self._launches, self._others = count(1), count(1), count(100)
        self._ready = ready

    def launch(self, inputs: StepInputs) -> Drew:
        self.launched.append(inputs)
        self.after.get(len(self.launched), lambda: None)()
        drawn = self.tokens.get(len(self.launched)) or [next(self._others) for _ in inputs.rows]
        return Drew(drawn, self._ready)

    def begin(self, rows: int = 1) -> None:
        """Prompts of three tokens in as many rows, and a token after each."""
        new = tuple(
            NewSequence(
                row=row,
                token_ids=int32(PROMPT),
                num_prompt_tokens=len(PROMPT),
                blocks=int32(range(4 * row, 4 * row + 4)),
                params=SamplingParams(temperature=0.0),
            )
            for row in range(rows)
        )
        self.run(self.plan(0, rows=rows, num_tokens=len(PROMPT), new=new))

    def plan(self, *plan: Any, **more: Any) -> Step:
        """A plan as it comes in; see `planned`."""
        step = Step(self.planned(*plan, **more), "scheduler", SCHEDULER, 0.0)
        self.multi_step.receive(step.plan)
        self.multi_step.pack(step)
        return step

    def planned(
        self,
        start: int,
        num_steps: int = 1,
        *,
        rows: int = 1,
        continues: bool = False,
        num_tokens: int = 1,
        new: tuple[NewSequence, ...] = (),
    ) -> StepPlan:
        """A plan of rows that all begin at `start`."""
        plan = plan_of(
            next(self._number), new=new, rows=range(rows), starts=[start] * rows, counts=[num_tokens] * rows
        )
        return structs.replace(plan, num_steps=num_steps, continues=continues)

    def run(self, step: Step) -> int:
        """Computes what has come in, and takes in what it drew. Returns how many steps that were."""
        launched = self.thread.launch(step.work(next(self._launches)))
        assert launched is not None and launched.tokens is not None
        step.launched = launched
        tokens = launched.tokens.token_ids()
        if step.may_stop_short:
            self.multi_step.take_tokens(step, tokens)
        else:
            self.batch.take_tokens(step.inputs, tokens)
        return launched.num_steps

    def known(self, row: int = 0) -> list[int]:
        return self.batch.known_tokens(row).tolist()


@pytest.fixture
def executor() -> Executor:
    return Executor()


def test_each_step_computes_what_the_step_before_drew(executor: Executor) -> None:
    executor.begin(rows=2)
    assert executor.run(executor.plan(3, 3, rows=2)) == 3
    assert [inputs.positions.tolist() for inputs in executor.launched[1:]] == [[3, 3], [4, 4], [5, 5]]
    assert [inputs.unknown_rows.tolist() for inputs in executor.launched[2:]] == [[0, 1], [0, 1]]
    assert executor.known(0) == [*PROMPT, 100, 102, 104, 106]
    assert executor.known(1) == [*PROMPT, 101, 103, 105, 107]


def test_a_plan_that_is_cut_begins_no_step_but_its_first(executor: Executor) -> None:
    executor.begin()
    step = executor.plan(3, 4)
    executor.multi_step.cut(step.plan.number)
    assert executor.run(step) == 1


def test_a_plan_that_is_cut_meanwhile_ends_after_the_step_at_hand(executor: Executor) -> None:
    executor.begin()
    step = executor.plan(3, 4)
    executor.after[3] = lambda: executor.multi_step.cut(step.plan.number)  # the prompt's is the first
    assert executor.run(step) == 2


def test_of_what_continues_a_plan_that_stopped_short_nothing_is_computed(executor: Executor) -> None:
    executor.begin()
    first = executor.plan(3, 2)
    second = executor.plan(5, 2, continues=True)
    executor.multi_step.cut(first.plan.number)
    assert (executor.run(first), executor.run(second)) == (1, 0)


def test_what_continues_a_plan_that_was_computed_is_computed_too(executor: Executor) -> None:
    executor.begin()
    first, second = executor.plan(3, 2), executor.plan(5, 2, continues=True)
    assert (executor.run(first), executor.run(second)) == (2, 2)
    assert executor.known() == [*PROMPT, *range(100, 105)]


def test_the_scheduler_goes_on_from_the_last_token_that_was_computed(executor: Executor) -> None:
    executor.begin()
    first, second = executor.plan(3, 4), executor.plan(7, 4, continues=True)
    executor.after[3] = lambda: executor.multi_step.cut(second.plan.number)
    assert (executor.run(first), executor.run(second)) == (2, 0)
    assert executor.run(executor.plan(5, 2)) == 2
    assert executor.known() == [*PROMPT, *range(100, 105)]


def test_a_plan_that_begins_anew_ends_those_before_it(executor: Executor) -> None:
    executor.begin()
    first = executor.plan(3, 4)
    executor.after[2] = lambda: executor.multi_step.receive(executor.planned(4))
    assert executor.run(first) == 1


def test_when_all_rows_have_ended_nothing_more_is_computed(executor: Executor) -> None:
    executor.begin(rows=2)
    executor.tokens |= {2: [END, 50], 3: [51, END]}
    first, second = executor.plan(3, 4, rows=2), executor.plan(7, 4, rows=2, continues=True)
    assert (executor.run(first), executor.run(second)) == (2, 0)


def test_an_end_before_a_plan_that_begins_anew_does_not_count_for_it(executor: Executor) -> None:
    executor.begin()
    executor.tokens[2] = [END]
    assert executor.run(executor.plan(3, 4)) == 1
    assert executor.run(executor.plan(4, 2)) == 2


def test_tokens_that_are_still_on_their_way_end_nothing() -> None:
    executor = Executor(ready=False)
    executor.begin()
    executor.tokens[2] = [END]
    assert executor.run(executor.plan(3, 3)) == 3


def test_what_nobody_wants_any_more_is_not_computed(executor: Executor) -> None:
    executor.begin()
    executor.after[3] = lambda: executor.cut.clear(SCHEDULER + 1)
    assert executor.run(executor.plan(3, 4)) == 2


def test_plans_of_a_scheduler_that_is_dead_cut_nothing_of_the_next(executor: Executor) -> None:
    executor.begin()
    executor.multi_step.cut(100)
    executor.multi_step.clear(SCHEDULER)
    assert executor.run(executor.plan(3, 3)) == 3
