"""The running requests by columns."""

import pytest

from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.running import Running
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams

LONG_CHUNK = 3


def request(serial, prompt=4, *, max_total=32, long=False, **params):
    return ScheduledRequest(
        request_id="",
        frontend="",
        serial=serial,
        arrival=serial,
        prompt=int32(range(prompt)),
        params=SamplingParams(**params),
        end_tokens=frozenset(),
        key=(float(serial), serial),
        max_total=max_total,
        is_long=long,
        state=State.RUNNING,
    )


@pytest.fixture
def running():
    running = Running()
    running.reset(4)
    return running


def admitted(running, *requests, cached=0):
    """Return requests that leave the step that admitted them without having computed anything."""
    for one in requests:
        running.admit(one, cached)
    rows = [one.row for one in requests]
    running.leave(
        ScheduledRows.of([0] * len(rows), rows, [0] * len(rows), [0] * len(rows), [False] * len(rows))
    )
    return requests


def columns(chunks):
    return tuple(column.tolist() for column in (chunks.serials, chunks.starts, chunks.lengths, chunks.draws))


def test_they_are_chosen_in_the_policys_order_and_decodes_come_before_prefills(running):
    admitted(running, request(2), cached=1)
    admitted(running, request(1), request(3), cached=3)
    assert [one.serial for one in running] == [1, 2, 3]
    assert columns(running.choose(4, 9)) == ([1, 2, 3], [3, 1, 3], [1, 2, 1], [True, False, True])


def test_a_budget_below_the_number_of_decodes_serves_the_first_of_them(running):
    admitted(running, request(1), request(2), request(3), cached=3)
    admitted(running, request(0))
    assert columns(running.choose(2, 9)) == ([1, 2], [3, 3], [1, 1], [True, True])


def test_a_chunk_of_a_long_prompt_is_bounded_and_leaves_room_for_others(running):
    admitted(running, request(1, 8, long=True), request(2, 8))
    assert columns(running.choose(9, LONG_CHUNK)) == ([1, 2], [0, 0], [3, 6], [False, False])
    assert running.num_long_prefills() == 1


def test_what_is_drawn_by_a_step_at_hand_is_planned_upon_and_not_beyond_the_end(running):
    (one,) = admitted(running, request(1, max_total=6), cached=3)
    for start in (3, 4):
        chunks = running.choose(9, 9)
        assert columns(chunks) == ([1], [start], [1], [True])
        running.enter(chunks)
        running.planned(chunks)
    assert running.are_pending(chunks.rows).all()
    assert not len(running.choose(9, 9)), "two pending tokens make six"
    running.computed(chunks)
    assert running.leave(chunks) == []
    running.append_tokens(chunks.rows, int32([7]))
    assert one.output == [7] and running.are_pending(chunks.rows).all()
    assert not len(running.choose(9, 9))
    running.computed(chunks)
    running.leave(chunks)
    assert not running.are_pending(chunks.rows).any()


def test_only_those_that_may_have_ended_are_looked_at(running):
    plain, stopping, full = admitted(
        running, request(1), request(2, stop_token_ids=(5,)), request(3, max_total=5), cached=3
    )
    rows = int32([plain.row, stopping.row, full.row])
    running.append_tokens(rows, int32([7, 7, 7]))
    assert running.candidates(rows, int32([7, 7, 7]), ()) == [stopping, full]
    assert running.candidates(rows[:1], int32([9]), (8, 9)) == [plain]
    assert running.first_sampled(rows) == [plain, stopping, full]
    assert running.first_sampled(rows) == []


def test_a_row_is_held_until_no_step_names_it(running):
    (one,) = admitted(running, request(1), cached=3)
    chunks = running.choose(9, 9)
    running.enter(chunks)
    one.state = State.ENDED
    running.remove(one)
    assert running.is_named(one) and not len(running)
    assert running.leave(chunks) == [one]
    running.release(one)
    assert running.take_freed_rows() == [0] and not running.take_freed_rows()
    running.check_integrity(ScheduledRows.of())


def test_a_lost_row_is_noticed(running):
    admitted(running, request(1))
    running.check_integrity(ScheduledRows.of())
    running.free_rows.pop()
    with pytest.raises(AssertionError, match="a row belongs to two, or none"):
        running.check_integrity(ScheduledRows.of())


def test_what_there_must_be_room_for_can_be_sent(running):
    admitted(running, request(1, prompt=4, max_total=7), request(2), cached=3)
    chunks = running.choose(9, 9)
    ends = running.ends_with(chunks, 4)
    assert ends.tolist() == [7, 8] and ends.dtype == chunks.ends.dtype == int32().dtype
