"""The persistent batch: plans in, packed steps out."""

from __future__ import annotations

import pytest

from pageant.actors.executor.batch.batch import PlanMismatch
from pageant.actors.executor.batch.inputs import UNKNOWN
from pageant.actors.executor.batch.shaping import NOTHING
from pageant.protocol.sampling import SamplingParams
from tests.actors.executor.batch.planned_batch import END, Executor


def test_a_prefill_is_packed_with_positions_and_slots(executor):
    inputs = executor.step([(1, 0, 6, True)], new=[(1, [10, 11, 12, 13, 14, 15], [7, 3])])
    assert inputs.token_ids.tolist() == [10, 11, 12, 13, 14, 15]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert inputs.slots[0].tolist() == [28, 29, 30, 31, 12, 13]
    assert inputs.query_starts.tolist() == [0, 6]
    assert inputs.context_lengths.tolist() == [6]
    assert inputs.block_tables[0].tolist() == [[7, 3]]
    assert inputs.last_tokens.tolist() == [5]
    assert inputs.rows.tolist() == [1]
    assert inputs.sampling.position.tolist() == [6]


def test_a_drawn_token_is_computed_in_the_next_step_without_being_sent(executor):
    inputs = executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2])])
    executor.draw(inputs, [42])
    inputs = executor.step([(0, 3, 1, True)])
    assert (inputs.token_ids.tolist(), inputs.slots[0].tolist()) == ([42], [11])


def test_a_step_is_packed_before_the_token_that_it_begins_with_is_drawn(executor):
    first = executor.step([(2, 0, 3, True)], new=[(2, [5, 6, 7], [2])])
    second = executor.step([(2, 3, 1, True)])
    assert second.token_ids.tolist() == [UNKNOWN]
    assert (second.unknown.tolist(), second.unknown_rows.tolist()) == ([0], [2])
    executor.draw(first, [42])
    executor.draw(second, [43])
    third = executor.step([(2, 4, 1, True)], grown=[(2, [3])])
    assert (third.token_ids.tolist(), third.unknown.tolist()) == ([43], [])


def test_a_row_with_penalties_needs_the_tokens_before_it(executor):
    assert not executor.batch.needs_tokens
    penalised = SamplingParams(temperature=0.0, presence_penalty=1.0)
    executor.step([(0, 0, 1, True)], new=[(0, [5], [1], penalised)])
    assert executor.batch.needs_tokens


def test_a_table_grows_at_its_end(executor):
    inputs = executor.step([(0, 0, 4, True)], new=[(0, [5, 6, 7, 8], [2])])
    executor.draw(inputs, [9])
    inputs = executor.step([(0, 4, 1, True)], grown=[(0, [6])])
    assert (inputs.slots[0].tolist(), inputs.block_tables[0].tolist()) == ([24], [[2, 6]])


def test_prefill_and_decode_share_a_step_and_a_chunk_draws_nothing(executor):
    inputs = executor.step([(0, 0, 2, True)], new=[(0, [1, 2], [0])])
    executor.draw(inputs, [3])
    inputs = executor.step([(0, 2, 1, True), (3, 0, 4, False)], new=[(3, [20, 21, 22, 23, 24], [4])])
    assert inputs.token_ids.tolist() == [3, 20, 21, 22, 23]
    assert inputs.query_starts.tolist() == [0, 1, 5]
    assert inputs.last_tokens.tolist() == [0]
    assert inputs.rows.tolist() == [0]
    assert (inputs.max_query_length, inputs.max_context_length) == (4, 4)
    executor.draw(inputs, [4])
    inputs = executor.step([(3, 4, 1, True)], grown=[(0, []), (3, [5])])
    assert (inputs.token_ids.tolist(), inputs.slots[0].tolist()) == ([24], [20])


def test_a_row_may_be_freed_and_taken_by_the_same_plan(executor):
    inputs = executor.step([(0, 0, 5, True)], new=[(0, [1, 2, 3, 4, 5], [0, 1])])
    executor.draw(inputs, [6])
    inputs = executor.step([(0, 0, 2, True)], freed=[0], new=[(0, [8, 9], [3])])
    assert (inputs.token_ids.tolist(), inputs.slots[0].tolist()) == ([8, 9], [12, 13])
    executor.draw(inputs, [7])
    inputs = executor.step([(0, 2, 1, True)])
    assert inputs.slots[0].tolist() == [14]


def test_a_resumed_sequence_brings_its_output_and_draws_at_the_same_position(executor):
    inputs = executor.step([(0, 0, 5, True)], new=[(0, [1, 2, 3, 4, 5], [0, 1], SamplingParams(seed=8), 3)])
    assert inputs.sampling.position.tolist() == [5]
    assert inputs.sampling.seed.tolist() == [8]


def test_tokens_are_those_of_their_rows_adapters_for_as_long_as_they_have_the_row():
    executor = Executor(adapters=("one", "two"))
    executor.adapters = {0: "two", 2: "one", 3: "two"}
    rows = [(row, [5, 6, 7], [row]) for row in range(4)]
    inputs = executor.step([(row, 0, 3 - row // 2, row < 2) for row in range(4)], new=rows)
    found = {name: tokens.tolist() for name, tokens in inputs.adapted}
    assert found == {"one": [6, 7], "two": [0, 1, 2, 8, 9]}
    assert executor.step([(1, 3, 1, True)]).adapted == ()
    executor.adapters = {}
    assert executor.step([(0, 0, 1, True)], new=[(0, [8], [0])], freed=[0]).adapted == ()


def test_sampling_parameters_are_those_of_the_drawing_rows(executor):
    hot = SamplingParams(temperature=0.5, top_k=-1, top_p=0.9, min_p=0.1, seed=3)
    inputs = executor.step([(2, 0, 1, True), (0, 0, 2, True)], new=[(0, [1, 2], [0]), (2, [3], [1], hot)])
    sampling = inputs.sampling
    assert sampling.temperature.tolist() == [0.5, 0.0]
    assert sampling.top_k.tolist() == [0, 0]
    assert sampling.top_p.tolist() == [pytest.approx(0.9), 1.0]
    assert sampling.shaping is NOTHING


def test_ends_are_held_back_until_min_tokens_are_there(executor):
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(9,))
    inputs = executor.step([(1, 0, 2, True)], new=[(1, [5, 6], [0], params)])
    assert inputs.sampling.shaping.forbidden.of_row(0) == [END, 9]
    executor.draw(inputs, [7])
    inputs = executor.step([(1, 2, 1, True)])
    assert inputs.sampling.shaping.forbidden.of_row(0) == [END, 9]
    executor.draw(inputs, [8])
    assert executor.step([(1, 3, 1, True)]).sampling.shaping is NOTHING


def test_ignored_end_tokens_are_not_held_back(executor):
    params = SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=(9,))
    inputs = executor.step([(1, 0, 2, True)], new=[(1, [5, 6], [0], params)])
    assert inputs.sampling.shaping.forbidden.of_row(0) == [9]


def test_a_freed_row_holds_nothing_back(executor):
    params = SamplingParams(min_tokens=5)
    executor.step([(1, 0, 2, True)], new=[(1, [5, 6], [0], params)])
    inputs = executor.step([(0, 0, 1, True)], freed=[1], new=[(0, [5], [1])])
    assert inputs.sampling.shaping is NOTHING
    assert not executor.batch._shapers


def test_a_missed_plan_is_noticed(executor):
    executor.step([(0, 0, 1, True)], new=[(0, [1], [0])])
    with pytest.raises(PlanMismatch, match="plan 3 came, 2 was expected"):
        executor.step([(0, 1, 1, True)], number=3)


def test_tokens_that_are_not_known_are_noticed(executor):
    with pytest.raises(PlanMismatch, match="not known here"):
        executor.step([(0, 0, 3, True)], new=[(0, [1, 2], [0])])


def test_tokens_without_blocks_are_noticed(executor):
    with pytest.raises(PlanMismatch, match="no blocks"):
        executor.step([(0, 0, 5, True)], new=[(0, [1, 2, 3, 4, 5], [0])])


def test_after_clear_a_new_scheduler_starts_from_nothing(executor):
    executor.step([(0, 0, 1, True)], new=[(0, [1], [0], SamplingParams(min_tokens=4))])
    executor.batch.clear()
    inputs = executor.step([(0, 0, 2, True)], new=[(0, [3, 4], [2])], number=1)
    assert inputs.slots[0].tolist() == [8, 9]
    assert inputs.sampling.shaping is NOTHING


def test_the_steps_arrays_are_no_views_of_the_batch(executor):
    inputs = executor.step([(0, 0, 2, True)], new=[(0, [1, 2], [0])])
    executor.step([(0, 0, 2, True)], freed=[0], new=[(0, [8, 9], [3])])
    assert inputs.token_ids.tolist() == [1, 2]
    assert inputs.block_tables[0].tolist() == [[0]]


def test_what_a_step_draws_for_a_row_that_is_anothers_by_then_is_not_taken(executor):
    drawing = executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2])])
    executor.step([(0, 0, 4, False)], new=[(0, [10, 11, 12, 13, 14], [1, 3])], freed=[0])
    executor.draw(drawing, [42])
    inputs = executor.step([(0, 3, 2, True)])
    assert inputs.token_ids.tolist() == [13, 14], "the former sequence drew its token for position 3"


def test_each_group_of_layers_has_a_table_and_slots_of_its_own(executor):
    executor.batch.group(2)
    inputs = executor.step([(1, 0, 6, True)], new=[(1, [10, 11, 12, 13, 14, 15], [7, 3, 5, 8])])
    assert inputs.block_tables.tolist() == [[[7, 5]], [[3, 8]]]
    assert inputs.slots.tolist() == [[28, 29, 30, 31, 20, 21], [12, 13, 14, 15, 32, 33]]
    executor.draw(inputs, [42])
    executor.step([(1, 6, 1, True)])
    executor.step([(1, 7, 1, True)])
    inputs = executor.step([(1, 8, 1, True)], grown=[(1, [1, 2])])
    assert inputs.block_tables.tolist() == [[[7, 5, 1]], [[3, 8, 2]]]
    assert inputs.slots.tolist() == [[4], [8]]


def test_a_table_that_lacks_the_block_of_a_group_has_no_slots_for_its_tokens(executor):
    executor.batch.group(2)
    with pytest.raises(PlanMismatch, match="no blocks"):
        executor.step([(1, 0, 5, True)], new=[(1, [10, 11, 12, 13, 14], [7, 3, 5])])


def test_a_row_that_was_freed_or_taken_has_not_the_sequence_of_before(executor):
    inputs = executor.step(
        [(1, 0, 2, True), (2, 0, 2, True), (3, 0, 2, True)],
        new=[(1, [10, 11], [7]), (2, [20, 21], [3]), (3, [30, 31], [4])],
    )
    executor.step([(2, 0, 1, True)], freed=[1, 2], new=[(2, [40], [5])])
    assert executor.batch.are_there(inputs).tolist() == [False, False, True]


def test_later_steps_of_a_plan_compute_what_the_one_before_draws():
    executor = Executor()
    executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2])])
    first = executor.step([(0, 3, 1, True)], grown=[(0, [9])])
    later = [executor.batch.go_on(executor.plan, steps) for steps in (1, 2)]
    assert [inputs.positions.tolist() for inputs in (first, *later)] == [[3], [4], [5]]
    assert [inputs.slots[0].tolist() for inputs in later] == [[36], [37]], (
        "in the block that came with the first"
    )
    assert all(inputs.unknown.tolist() == [0] and inputs.unknown_rows.tolist() == [0] for inputs in later)
    with pytest.raises(PlanMismatch, match="no blocks"):
        [executor.batch.go_on(executor.plan, steps) for steps in (3, 4, 5)]


def test_a_step_that_is_taken_back_is_planned_again():
    executor = Executor()
    executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2, 9])])
    executor.step([(0, 3, 1, True)])
    later = [executor.batch.go_on(executor.plan, steps) for steps in (1, 2)]
    for inputs in later:
        executor.batch.take_back(inputs)
    with pytest.raises(PlanMismatch, match="not known"):
        executor.step([(0, 5, 1, True)])
    assert executor.step([(0, 4, 1, True)]).positions.tolist() == [4]


def test_a_step_that_is_taken_back_says_nothing_of_who_has_its_row_now():
    executor = Executor()
    executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2, 9])])
    inputs = executor.step([(0, 3, 1, True)])
    executor.step([(0, 0, 6, True)], freed=[0], new=[(0, [1, 2, 3, 4, 5, 6], [3, 4])])
    executor.batch.take_back(inputs)
    assert executor.step([(0, 6, 1, True)]).positions.tolist() == [6]


def test_where_the_next_draw_depends_on_the_tokens_there_are_no_plans_of_several_steps():
    executor = Executor()
    executor.step([(0, 0, 3, True)], new=[(0, [5, 6, 7], [2], SamplingParams(frequency_penalty=1.0))])
    with pytest.raises(PlanMismatch, match="must be known"):
        executor.batch.go_on(executor.plan, 1)


def test_who_has_ended_and_whose_row_is_still_held_keeps_nobody_from_several_steps():
    executor = Executor()
    penalised = (0, [5, 6, 7], [2], SamplingParams(frequency_penalty=1.0))
    executor.step([(0, 0, 3, True), (1, 0, 2, True)], new=[penalised, (1, [5, 6], [3])])
    executor.step([(1, 2, 1, True)])
    assert executor.batch.go_on(executor.plan, 1).positions.tolist() == [3]
