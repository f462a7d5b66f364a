"""Guided rows: what the grammar is told, which masks are taken, and what waits for one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pageant.actors.executor.guided.guiding import Guiding, RowTokens
from pageant.actors.executor.guided.keeping import PATIENCE_SECONDS, patience_by_late
from pageant.actors.runtime.clock import MonotonicClock
from pageant.protocol.arrays import int32, int64
from pageant.protocol.guiding import TokenMasks
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence

SECONDS = 10.0
SIZE = 4
PROMPT = 3


def sequence(row, output=(), asked="a+"):
    params = SamplingParams(structured_outputs={"regex": asked} if asked else None)
    token_ids = int32([*range(PROMPT), *output])
    return NewSequence(row=row, token_ids=token_ids, num_prompt_tokens=PROMPT, blocks=int32(), params=params)


def drawn(*places):
    rows, positions, token_ids = zip(*places, strict=True)
    return RowTokens(int32(rows), int64(positions), int64(token_ids))


def masks(guides, positions, ahead=None, failed=None):
    bits = np.stack([np.full(2, position, np.int32) for position in positions])
    ahead = ahead or [0] * len(guides)
    return TokenMasks(
        epoch=1,
        guides=int64(guides),
        positions=int64(positions),
        ahead=int64(ahead),
        bits=bits,
        failed=failed or {},
    )


@pytest.fixture
def guiding():
    return Guiding(SIZE)


def step(guiding, *places):
    rows, positions, ahead = zip(*places, strict=True)
    return guiding.of_step(int32(rows), int64(positions), int64(ahead))


def test_a_grammar_is_told_of_new_rows_tokens_and_ends(guiding):
    guiding.add(sequence(2, output=[7, 8]))
    guiding.add(sequence(1, asked=None))
    news = guiding.take_changes(1)
    (opened,) = news.opened
    assert (opened.position, opened.token_ids.tolist()) == (5, [7, 8])
    assert guiding.take_changes(1) is None
    news = guiding.take_changes(1, drawn((1, 3, 50), (2, 5, 60)))
    assert [news.guides.tolist(), news.positions.tolist(), news.token_ids.tolist()] == [
        [opened.guide],
        [5],
        [60],
    ]
    guiding.free([1, 2])
    assert guiding.take_changes(1).closed.tolist() == [opened.guide]


def test_a_row_that_came_and_went_was_never_there(guiding):
    guiding.add(sequence(0))
    guiding.free([0])
    assert guiding.take_changes(1) is None


def test_masks_are_of_the_sequence_that_they_were_made_for(guiding):
    guiding.add(sequence(0))
    (opened,) = guiding.take_changes(1).opened
    guiding.add(sequence(0))  # another one
    (other,) = guiding.take_changes(1).opened
    guided = step(guiding, (0, 3, 0))
    guiding.take_masks(masks([opened.guide], [3]))
    assert guided.late.tolist() == [0]
    guiding.take_masks(masks([other.guide], [3]))
    assert not len(guided.late) and guided.present()[1].tolist() == [[3, 3]]
    guiding.fail(opened.guide, "nobody hears this")
    assert guided.failures() == {}


def test_a_place_along_drafts_has_a_mask_of_its_own_and_a_late_one_is_done_without(guiding):
    for row in (0, 1):
        guiding.add(sequence(row))
    first, second = guiding.take_changes(1).opened
    guided = step(guiding, (0, 3, 0), (0, 4, 1), (0, 5, 2), (1, 3, 0), (2, 9, 0))
    assert guided.places.tolist() == [0, 1, 2, 3]
    guiding.guess(int32([0, 1]), int64([3, 3]), int32([2, 0]), int32([40, 41]))
    news = guiding.take_changes(1)
    assert (news.drafting.tolist(), news.draft_positions.tolist(), news.draft_ids.tolist()) == (
        [first.guide],
        [3],
        [40, 41],
    )
    guiding.take_masks(masks([first.guide] * 2, [3, 4], [0, 1]))
    assert guided.late.tolist() == [2, 3] and guided.deferred.tolist() == [3]
    places, bits = guided.present()
    assert places.tolist() == [0, 1] and bits[:, 0].tolist() == [3, 4]
    later = step(
        guiding, (0, 5, 0), (0, 6, 1), (1, 3, 0)
    )  # of another step: what is there is for other places
    assert later.late.tolist() == [0, 1, 2]
    guiding.take_masks(masks([second.guide], [3], failed={first.guide: "too costly"}))
    assert not len(later.late) and later.failures() == {0: "too costly", 1: "too costly"}


def test_what_follows_a_deferred_token_is_void_until_that_is_known(guiding):
    guiding.add(sequence(0))
    guiding.defer(int32([0]), int64([3]))
    assert guiding.void_places(int32([1, 0]), int64([8, 4])) == (1,)
    assert guiding.unknown_rows(int32([0, 1])) == {0}
    guiding.arrived([0])
    assert guiding.unknown_rows(int32([0, 1])) == set()
    assert guiding.void_places(int32([0]), int64([5])) == (0,)  # planned before anybody knew
    assert guiding.void_places(int32([0]), int64([4]), frozenset({0})) == (0,)  # packed before
    assert guiding.void_places(int32([0]), int64([4])) == ()
    assert guiding.void_places(int32([0]), int64([5])) == ()


def test_a_grammar_that_is_new_is_told_of_everything_again(guiding):
    for row in (0, 3):
        guiding.add(sequence(row))
    first, second = guiding.take_changes(1).opened
    guiding.take_masks(masks([first.guide], [3]))
    tokens = {0: int32([0, 1, 2, 9]), 3: int32([0, 1, 2])}
    guiding.reopen(tokens, [first.guide])
    (again,) = guiding.take_changes(1).opened
    assert (again.guide, again.position, again.token_ids.tolist()) == (first.guide, 4, [9])
    guiding.reopen(tokens)
    assert {one.guide for one in guiding.take_changes(1).opened} == {first.guide, second.guide}


def test_the_thread_that_computes_waits_for_what_comes_soon(guiding):
    guiding.add(sequence(0))
    guiding.add(sequence(1))
    first, second = (one.guide for one in guiding.take_changes(1).opened)
    waiting = step(guiding, (0, 3, 0), (1, 3, 0))
    clock = MonotonicClock()
    assert not waiting.come_until(clock.now(), clock)
    with ThreadPoolExecutor(1) as thread:
        there = thread.submit(waiting.come_until, clock.now() + SECONDS, clock)
        guiding.take_masks(masks([first], [3]))
        assert not there.done()
        guiding.fail(second, "it may not")
        assert there.result()
    assert waiting.late.tolist() == [] and waiting.failures() == {1: "it may not"}


def test_a_step_is_the_more_patient_the_more_of_its_rows_are_late():
    one, many, all_ = patience_by_late(64, 0.001)[[1, 60, 64]].tolist()
    assert 0 < one < many < all_ == PATIENCE_SECONDS
    assert patience_by_late(64, 10.0)[63] == PATIENCE_SECONDS
