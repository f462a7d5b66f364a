"""Thoughts end at their bound, wherever their marks come and whatever is known ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pageant.actors.executor.batch.thoughts import REACH, ThoughtBudget
from pageant.protocol.thinking import Mark, Thinking

# Tokens: 0 begins thoughts, 1 ends them, 2 and 3 are the halves of the end, 4 is a blank, others are words.
BEGIN = Mark(length=7, begins={0: 7}, goes_on=({},) * 7, rest=((0,),) * 7, blanks=(4,))
END = Mark(length=8, begins={1: 8, 2: 4}, goes_on=({}, {}, {}, {}, {3: 8}), rest=((1,),) * 4 + ((3,),))


def budget(most, output=(), *, is_open=False):
    return ThoughtBudget(Thinking(begin=BEGIN, end=END, is_open=is_open), most, output)


def test_after_so_many_tokens_the_end_is_forced():
    thoughts = budget(3, [4, 0])
    for token in (7, 8, 9):
        assert thoughts.forced() is None
        thoughts.take(token)
    assert thoughts.forced() == 1 and not thoughts.is_over
    thoughts.take(1)
    assert thoughts.is_over and thoughts.forced() is None


def test_no_thoughts_at_all_and_those_that_begin_in_the_prompt():
    assert budget(0, [0]).forced() == 1
    assert budget(0, is_open=True).forced() == 1
    assert budget(2, [7], is_open=True).forced() is None
    assert budget(2, [7, 7], is_open=True).forced() == 1


def test_an_end_that_has_begun_is_completed():
    thoughts = budget(2, [0, 7, 2])
    assert thoughts.forced() == 3
    assert thoughts.forced([3]) is None and thoughts.forced([7]) == 1


def test_what_ends_by_itself_or_is_no_thought_is_left_alone():
    for output in ([0, 7, 1], [0, 7, 2, 3], [7], [4, 7], [0, 1, 0, 7, 7, 7, 7]):
        thoughts = budget(2, output)
        assert thoughts.is_over and thoughts.forced() is None
    assert not budget(2).is_over and not budget(2, [4, 4]).is_over


def test_it_is_near_only_when_its_bound_may_come_before_what_is_drawn_is_known():
    assert not budget(REACH + 2, [0, 7]).is_near
    assert budget(REACH + 2, [0, 7, 7]).is_near
    assert not budget(5, [0, 1]).is_near


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 6), st.booleans(), st.integers(0, 20))
def test_drafts_are_looked_at_as_if_they_had_been_drawn(output, most, is_open, known):
    whole = budget(most, output, is_open=is_open)
    part = budget(most, output[:known], is_open=is_open)
    assert part.forced(output[known:]) == whole.forced()
    for token in output[known:]:
        part.take(token)
    assert (part.is_over, part.forced()) == (whole.is_over, whole.forced())
