"""Ends of groups: deadlines, aborts, ranks that leave, ranks that meet in different operations."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from pageant.kernels.collectives.base import GroupBroken, GroupMisuse
from tests.kernels.collectives.groups import GROUPS, in_threads

KINDS = tuple(GROUPS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_when_the_deadline_passes(kind):
    with GROUPS[kind](2, deadline_seconds=0.5) as (first, _):
        with pytest.raises(GroupBroken, match=r"0\.5 s"):
            first.barrier()
        with pytest.raises(GroupBroken, match=r"0\.5 s"):  # and nothing goes on after it
            first.send(torch.zeros(1), 1)
        with pytest.raises(GroupBroken):
            first.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waits", ["barrier", "receive", "all_reduce"])
def test_an_abort_from_another_thread_ends_a_wait_with_its_reason(kind, waits):
    calls = {
        "barrier": lambda rank: rank.barrier(),
        "receive": lambda rank: rank.receive(torch.zeros(3), 1),
        "all_reduce": lambda rank: rank.all_reduce(torch.zeros(1, 2, 2), torch.zeros(2, 2)),
    }
    with GROUPS[kind](2) as (first, _):
        threading.Timer(0.2, first.abort, ("the executor stops",)).start()
        (found,) = in_threads([lambda: calls[waits](first)])
        assert isinstance(found, GroupBroken)
        assert "the executor stops" in str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_leaves_ends_the_wait_of_others(kind):
    with GROUPS[kind](2) as (first, second):
        threading.Timer(0.2, second.close).start()
        (found,) = in_threads([first.barrier])
        assert isinstance(found, GroupBroken)
        with pytest.raises(GroupBroken):
            second.barrier()
        second.close()  # once more does nothing


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gloo"])
def test_ranks_that_meet_in_different_operations_are_told_so(kind):
    with GROUPS[kind](2) as (first, second):
        found = in_threads(
            [lambda: first.all_gather(torch.zeros(2), torch.zeros(2, 2)), lambda: second.barrier()]
        )
        assert all(isinstance(one, GroupBroken) for one in found)
        assert any("all_gather" in str(one) and "barrier" in str(one) for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_that_two_ranks_see_differently_are_found(kind):
    with GROUPS[kind](2) as (first, second):
        found = in_threads(
            [
                lambda: first.all_to_all(torch.zeros(3, 2), [1, 2], [1, 0]),
                lambda: second.all_to_all(torch.zeros(0, 2), [0, 0], [1, 0]),
            ]
        )
        assert any(isinstance(one, GroupBroken) and "rows" in str(one) for one in found)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gloo"])
def test_a_second_thread_in_one_rank_is_refused(kind):
    with GROUPS[kind](2) as (first, second):

        def wait() -> None:
            entered = False
            while not entered:  # the other thread may be the first
                with contextlib.suppress(GroupMisuse):
                    first.barrier()
                    entered = True

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        refused = None
        while refused is None and thread.is_alive():
            try:
                first.send(torch.zeros(1), 1)
                second.receive(torch.zeros(1), 0)
            except GroupMisuse as error:
                refused = error
        assert refused is not None
        assert "one at a time" in str(refused)
        second.barrier()
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_two_groups_in_one_process_do_not_disturb_each_other(kind):
    with GROUPS[kind](2) as ours, GROUPS["local"](2) as theirs:
        totals = [torch.empty(1, 1) for _ in range(4)]
        calls = [
            lambda rank=rank, total=total, value=value: [
                rank.all_reduce(torch.full((1, 1, 1), value), total) for _ in range(50)
            ]
            for rank, total, value in zip([*ours, *theirs], totals, (1.0, 2.0, 30.0, 40.0), strict=True)
        ]
        in_threads(calls)
        assert [float(total) for total in totals] == [3, 3, 70, 70]
        theirs[0].abort("the other group ends")
        in_threads([lambda rank=rank: rank.barrier() for rank in ours])
        ours[0].check()
