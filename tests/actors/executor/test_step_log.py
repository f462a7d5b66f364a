"""The log of an executor's last steps: what is kept, and what is told of it."""

from types import SimpleNamespace

import numpy as np

from pageant.actors.executor.guided.guiding import RowTokens
from pageant.actors.executor.step_log import STEPS_KEPT, StepLog


def step(num_steps=1, drafts=(), reached_draw=0.0):
    """A step of two rows, of which one is new and has three tokens, and the other has one token and drafts."""
    plan = SimpleNamespace(
        rows=np.array([0, 1]), new=(None,), num_tokens=np.array([3, 1]), draft_ids=np.array(drafts)
    )
    return SimpleNamespace(
        plan=plan,
        launched=SimpleNamespace(num_steps=num_steps, began=2.0, reached_draw=reached_draw),
        tokens=SimpleNamespace(drafting_seconds=0.25),
        prefill_tokens=3,
        came=1.0,
    )


def drawn(*rows):
    return RowTokens(np.array(rows), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64))


def test_drafts_that_were_right_are_counted_by_the_tokens_that_count():
    log = StepLog()
    log.add(step(drafts=(7, 8, 9)), drawn(0, 1, 1, 1), 5, ended=4.0)
    (found,) = log.last(10, 0.0)
    assert (found.number, found.num_steps, found.rows, found.new_rows) == (1, 1, 2, 1)
    assert (found.prefill_tokens, found.decode_tokens) == (3, 1)
    assert (found.drafted, found.accepted, found.sampled) == (3, 2, 4)
    assert (found.came, found.began, found.ended, found.drafting_seconds) == (1.0, 2.0, 4.0, 0.25)
    assert found.mask_seconds == 0.0


def test_the_wait_for_masks_is_the_time_from_the_logits_to_the_tokens():
    log = StepLog()
    log.add(step(reached_draw=2.5), drawn(0, 1), 2, ended=4.0)
    assert log.last(1, 0.0)[0].mask_seconds == 1.5


def test_a_plan_of_several_steps_is_one_record_and_one_that_was_cut_is_none():
    log = StepLog()
    log.add(step(num_steps=4), None, 8, ended=4.0)
    log.add(step(num_steps=0), None, 0, ended=5.0)
    (found,) = log.last(10, 0.0)
    assert (found.number, found.num_steps, found.decode_tokens, found.sampled) == (4, 4, 13, 8)


def test_the_last_are_kept_and_told_of_as_far_as_they_are_asked_for():
    log = StepLog()
    for number in range(STEPS_KEPT + 10):
        log.add(step(), drawn(0, 1), 2, ended=float(number))
    assert len(log.last(1000, 0.0)) == STEPS_KEPT
    assert [one.number for one in log.last(3, 0.0)] == [STEPS_KEPT + 8, STEPS_KEPT + 9, STEPS_KEPT + 10]
    assert [one.ended for one in log.last(1000, STEPS_KEPT + 8.0)] == [STEPS_KEPT + 8.0, STEPS_KEPT + 9.0]
    assert log.last(0, 0.0) == ()
