"""For how long recorded steps wait for masks before they compute what these would spare."""

from __future__ import annotations

import torch

from pageant.actors.executor.guided_ends import GuidedEnd, _Recorded

SPARED, HEAD = 0.75, 0.004  # of the logits, and seconds that all of them take


def played(end: GuidedEnd, late: float) -> float:
    """Plays a step whose masks come `late` seconds after the first logits are there. Returns how long it waited
    then."""
    knew = late <= end.patience
    waited = late if knew else end.patience
    share = 1 - SPARED if knew else 1.0
    done = waited + HEAD * share
    waited_more = max(0.0, late - done)
    nanoseconds = [round(1e9 * seconds) for seconds in (waited, waited_more, done)]
    gates = (
        torch.tensor([int(knew), nanoseconds[0], 0]),
        torch.tensor([1, nanoseconds[1], nanoseconds[2]]),
    )
    known, shares = torch.tensor([round(1e6 * SPARED), 0]), torch.tensor([round(1e6 * share)])
    recorded = _Recorded(torch.empty(0), torch.empty(0), known, shares, gates)
    has_drawn, waited_in_all = end.learn(recorded, 1.0)
    assert has_drawn
    assert abs(waited_in_all - waited - waited_more) < 1e-8
    assert abs(end.took + waited_in_all - 1) < 1e-8
    return waited


def test_what_comes_soon_is_waited_for():
    end = GuidedEnd()
    assert played(end, 0.001) == 0, "nothing is known yet"
    assert [played(end, 0.001) for _ in range(20)] == [0.001] * 20
    assert abs(end.head - HEAD) < 1e-6


def test_what_comes_too_late_to_spare_anything_is_seldom_waited_for():
    end = GuidedEnd()
    waits = [played(end, 2 * HEAD) for _ in range(200)]
    assert sum(wait > 0 for wait in waits) < 20
    # And when it comes sooner again, that is found out.
    assert [played(end, 0.001) for _ in range(100)][-20:] == [0.001] * 20


def test_nothing_is_waited_for_where_all_is_needed():
    end = GuidedEnd(head=HEAD, spared=0.0)
    assert end.patience == 0
