"""The persistent batch with drafts to verify, and with tokens that come late."""

from __future__ import annotations

from pageant.protocol.arrays import bools, int32, int64
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import StepPlan
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.protocol.verification import MISSING


def _verify(executor, parents=()):
    """Row 0 knows 5, 6, 7; 8, 9 and 8 are its drafts."""
    executor.step([(0, 0, 2, False)], new=[(0, [5, 6, 7], [2, 1])])
    plan = StepPlan(
        **dict(number=2, epoch=1, freed_rows=int32(), new=(), grown_rows=int32(), grown_counts=int32()),
        **dict(grown_blocks=int32(), rows=int32([0]), starts=int32([2]), num_tokens=int32([1])),
        draws=bools([True]),
        draft_counts=int32([3]),
        draft_ids=int32([8, 9, 8]),
        draft_parents=int32(parents),
    )
    executor.number = 2
    return executor.batch.apply(plan)


def test_a_deferred_token_of_a_row_that_is_anothers_by_then_is_not_taken(executor):
    guided = SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(regex="[a-z]+"))
    rows, positions, tokens = int64([0, 1]), int64([2, 2]), int64([8, 9])
    executor.step(
        [(0, 0, 2, True), (1, 0, 2, True)], new=[(0, [5, 6], [0], guided), (1, [5, 7], [1], guided)]
    )
    guides = [executor.batch.guiding.guide_of(row) for row in (0, 1)]
    executor.step(
        [(0, 0, 2, True)], freed=[0], new=[(0, [5, 6], [2], guided)]
    )  # as after its memory was lost
    drawn = executor.batch.take_late(rows, positions, tokens, guides)
    assert [column.tolist() for column in drawn] == [[1], [2], [9]]
    assert executor.batch.known_tokens(0).tolist() == [5, 6]
    assert executor.batch.known_tokens(1).tolist() == [5, 7, 9]


def test_drafts_follow_what_is_known_and_a_token_is_drawn_after_each(executor):
    inputs = _verify(executor)
    assert inputs.token_ids.tolist() == [7, 8, 9, 8]
    assert inputs.positions.tolist() == [2, 3, 4, 5]
    assert inputs.slots[0].tolist() == [10, 11, 4, 5]
    assert inputs.sampling.position.tolist() == [3, 4, 5, 6]
    assert inputs.ancestors is None


def test_after_a_wrong_draft_the_row_ends_with_what_was_drawn_instead(executor):
    executor.draw(_verify(executor), [8, 33, 1, 2])
    inputs = executor.step([(0, 4, 1, True)])
    assert inputs.token_ids.tolist() == [33] and inputs.slots[0].tolist() == [4]


def test_a_row_without_drafts_is_planned_ahead_of_those_that_another_verifies(executor):
    executor.step([(0, 0, 2, False), (1, 0, 2, False)], new=[(0, [5, 6, 7], [2, 1]), (1, [5, 6, 9], [3, 0])])
    plan = StepPlan(
        **dict(number=2, epoch=1, freed_rows=int32(), new=(), grown_rows=int32(), grown_counts=int32()),
        **dict(grown_blocks=int32(), rows=int32([0, 1]), starts=int32([2, 2]), num_tokens=int32([1, 1])),
        draws=bools([True, True]),
        draft_counts=int32([1, 0]),
        draft_ids=int32([8]),
    )
    verifying = executor.batch.apply(plan)
    executor.number = 2
    ahead = executor.step([(1, 3, 1, True)])
    executor.draw(verifying, [8, 9, 40])
    executor.draw(ahead, [41])
    inputs = executor.step([(0, 4, 1, True), (1, 4, 1, True)])
    assert inputs.token_ids.tolist() == [9, 41]


def _verify_one(batch, number, start, draft):
    return batch.apply(
        StepPlan(
            **dict(
                number=number, epoch=1, freed_rows=int32(), new=(), grown_rows=int32(), grown_counts=int32()
            ),
            **dict(grown_blocks=int32(), rows=int32([0]), starts=int32([start]), num_tokens=int32([1])),
            draws=bools([True]),
            draft_counts=int32([1]),
            draft_ids=int32([draft]),
        )
    )


def test_drafts_follow_a_token_that_came_late(executor):
    guided = SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(regex="[a-z]+"))
    deferred = executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2, 1], guided)])
    executor.batch.take_tokens(deferred, int64([MISSING]))
    ahead = executor.step([(0, 3, 1, True)])
    executor.batch.take_tokens(ahead, int64([MISSING]), void=(0,))
    executor.batch.take_late(int64([0]), int64([3]), int64([8]), [executor.batch.guiding.guide_of(0)])
    inputs = _verify_one(executor.batch, 3, 3, 9)
    assert inputs.token_ids.tolist() == [8, 9]
    # And again, where the token that comes late is the first of several.
    executor.batch.take_tokens(inputs, int64([MISSING, MISSING]))
    executor.batch.take_late(int64([0]), int64([4]), int64([10]), [executor.batch.guiding.guide_of(0)])
    assert _verify_one(executor.batch, 4, 4, 11).token_ids.tolist() == [10, 11]


def test_drafts_of_a_tree_stand_by_depth_and_see_their_ancestors(executor):
    inputs = _verify(executor, parents=[-1, -1, 1])  # 8, or 9 and then 8
    assert inputs.positions.tolist() == [2, 3, 3, 4]
    assert inputs.slots[0].tolist() == [10, 11, 4, 5], "where they stand in memory has nothing to do with it"
    assert inputs.sampling.position.tolist() == [3, 4, 4, 5]
    assert inputs.ancestors.tolist() == [0b0001, 0b0011, 0b0101, 0b1101]
    executor.draw(inputs, [9, 1, 8, 44])
    assert executor.step([(0, 5, 1, True)]).token_ids.tolist() == [44]
