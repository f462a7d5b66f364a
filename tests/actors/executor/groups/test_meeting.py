"""Meetings of a group's members: who waits there for others that do not come is told to give up."""

from __future__ import annotations

import time

import pytest

from pageant.actors.executor.group_shape import GroupShape
from pageant.actors.executor.groups.meeting import Meeting
from pageant.kernels.collectives.base import GroupBroken
from pageant.kernels.collectives.segment import Segment
from pageant.protocol.ranks import FormGroup
from tests.kernels.collectives.groups import in_threads


@pytest.mark.parametrize("collectives", ["shm", "gloo"])
def test_a_member_that_waits_for_others_is_told_to_give_up(collectives: str) -> None:
    with Segment(2) as segment:
        where = segment.address if collectives == "shm" else "alone/1"
        form = FormGroup(collectives=collectives, meeting=where, num_near=1)
        meeting = Meeting(form, 0, GroupShape(2, 1), lambda key, value: None)

        def abort_once_it_waits() -> None:
            while not meeting._made:
                time.sleep(0)
            meeting.abort("the other one has died")

        found, _ = in_threads([meeting.join, abort_once_it_waits])
    assert isinstance(found, GroupBroken), "long before anyone's deadline"
    assert "the other one has died" in str(found)
    meeting.close()


def test_a_meeting_that_was_aborted_before_is_not_waited_for() -> None:
    with Segment(2) as segment:
        form = FormGroup(collectives="shm", meeting=segment.address, num_near=1)
        meeting = Meeting(form, 0, GroupShape(2, 1), lambda key, value: None)
        meeting.abort("it was stopped")
        with pytest.raises(GroupBroken, match="it was stopped"):
            meeting.join()
    meeting.close()
