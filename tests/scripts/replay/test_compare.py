"""Replays: what is counted of a run, how two differ, and what a step is said to cost."""

from __future__ import annotations

import itertools
import random

import pytest

from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished, OutputBatch, Submit
from pageant.scripts.replay.compare import (
    comparable,
    differences,
    figures,
    first_token,
    inverted,
    next_token,
    whole,
)
from pageant.scripts.replay.costs import StepCosts, StepSize
from pageant.scripts.replay.timeline import Timeline


def submit(name: str) -> Submit:
    params = SamplingParams(temperature=0)
    return Submit(request_id=name, frontend="f", prompt_token_ids=int32([1, 2, 3]), params=params)


def output(name: str, start: int, tokens: list[int], finished: Finished | None = None) -> OutputBatch:
    return OutputBatch(
        number=1,
        request_ids=(name,),
        texts=("",),
        text_starts=int32([0]),
        token_starts=int32([start]),
        counts=int32([len(tokens)]),
        token_ids=int32(tokens),
        finished={0: finished} if finished is not None else {},
    )


def test_a_timeline_takes_each_token_once_and_nothing_after_the_end():
    timeline = Timeline()
    timeline.submitted(("f", "a"), submit("a"), 10.0)
    timeline.output("f", output("a", 0, [7, 8]), 11.0)
    timeline.output("f", output("a", 1, [8, 9]), 12.0)  # after a detokenizer's death
    end = Finished(reason="length", num_cached_tokens=2, num_preemptions=1, queue_seconds=0.5)
    assert timeline.output("f", output("a", 3, [5], end), 13.0) == [("f", "a")]
    assert timeline.output("f", output("a", 4, [6]), 14.0) == []
    assert timeline.output("f", output("stranger", 0, [6]), 14.0) == []
    (course,) = timeline.courses.values()
    assert course.token_ids.tolist() == [7, 8, 9, 5] and course.served
    assert timeline.begun_before == 1
    assert (first_token(course), next_token(course), whole(course)) == (1.0, pytest.approx(2 / 3), 3.0)
    found = figures([course], [0])
    assert (found.cached_tokens, found.prompt_tokens, found.preemptions) == (2, 3, 1)
    assert found.queue is not None and found.queue.p99 == 0.5


def test_output_recorded_before_its_request_is_that_requests():
    """The parts of two processes come in any order."""
    timeline = Timeline()
    assert timeline.output("f", output("a", 0, [7]), 11.0) == []
    assert timeline.output("f", output("a", 1, [8], Finished(reason="stop")), 12.0) == []
    assert timeline.begun_before == 1
    timeline.submitted(("f", "a"), submit("a"), 10.0)
    (course,) = timeline.courses.values()
    assert course.token_ids.tolist() == [7, 8] and course.served and timeline.begun_before == 0
    assert (first_token(course), whole(course)) == (1.0, 2.0)


def test_a_request_whose_user_left_or_that_has_no_end_is_not_compared():
    timeline = Timeline()
    for name in "abc":
        timeline.submitted(("f", name), submit(name), 0.0)
    timeline.left(("f", "a"), 1.0)
    timeline.output("f", output("a", 0, [1], Finished(reason="abort")), 2.0)
    timeline.output("f", output("b", 0, [1], Finished(reason="stop")), 2.0)
    courses = list(timeline.courses.values())
    assert [course.end for course in courses] == ["left", "served", "cut off"]
    assert comparable([courses, courses]) == [1]
    assert differences(courses, courses, [1]).other_tokens == 0


def test_pairs_the_other_way_round_are_counted_as_by_hand():
    chance = random.Random(3)
    for _ in range(50):
        count = chance.randint(2, 12)
        before, after = ([float(chance.randint(0, 6)) for _ in range(count)] for _ in range(2))
        pairs = list(itertools.combinations(range(count), 2))
        by_hand = sum((before[i] - before[j]) * (after[i] - after[j]) < 0 for i, j in pairs)
        assert inverted(before, after) == pytest.approx(by_hand / len(pairs))


def test_costs_are_found_again_and_none_is_negative():
    chance, costs = random.Random(5), StepCosts()
    for _ in range(200):
        size = StepSize(chance.randint(1, 500), chance.randint(1, 32), chance.randint(1, 5000))
        costs.add(size, 0.002 + 1e-5 * size.tokens + 2e-7 * size.context)
    costs.fit()
    assert costs.expected(StepSize(100, 8, 1000)) == pytest.approx(0.002 + 1e-3 + 2e-4, rel=1e-3)
    fitted = vars(costs.fitted) | {"bends": 0.0}
    assert all(value >= 0 for value in fitted.values())
    slopes = itertools.accumulate((one.seconds for one in costs.fitted.bends), initial=costs.fitted.token)
    assert min(slopes) >= -1e-12, "no token costs less than nothing"
    luck = costs.luck()
    factors = [costs.factor(StepSize(chance.randint(1, 500), 1, 1), next(luck)) for _ in range(10)]
    assert factors == pytest.approx([1.0] * 10)
    assert StepCosts().expected(StepSize(1, 1, 1)) > 0


def test_costs_of_short_steps_are_not_bent_by_long_ones():
    """A row costs little up to 16, and then much; some steps are held up. The median of each size is expected."""
    chance, costs = random.Random(6), StepCosts()

    def seconds(rows: int) -> float:
        return 0.003 + 2e-4 * rows + 6e-4 * max(0, rows - 16)

    for _ in range(600):
        rows = chance.choice((1, 2, 4, 8, 16, 24, 32))
        held_up = 5.0 if chance.random() < 0.1 else chance.uniform(0.95, 1.05)
        costs.add(StepSize(rows, rows, 100 * rows), seconds(rows) * held_up)
    for _ in range(30):
        tokens = chance.randint(500, 2000)
        costs.add(StepSize(tokens, 4, tokens), (0.01 + 8e-4 * tokens) * chance.uniform(0.8, 1.3))
    costs.fit()
    for rows in (1, 4, 16, 32):
        assert costs.expected(StepSize(rows, rows, 100 * rows)) == pytest.approx(seconds(rows), rel=0.1)
    assert costs.factor(StepSize(1, 1, 1), 0.999) > 4 > 1.1 > costs.factor(StepSize(1, 1, 1), 0.5)
