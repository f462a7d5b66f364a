"""The regimes of running ahead: which one holds, and what it excludes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.run_ahead import RULES, Regime, RunAhead

SINGLE, SEVERAL = (SimpleNamespace(may_end_early=value) for value in (False, True))


def limits(*, ahead: bool = True, short: float = 0.005, steps: int = 4) -> Limits:
    return Limits(
        max_num_seqs=8,
        max_num_batched_tokens=16,
        max_model_len=64,
        end_tokens=frozenset(),
        async_scheduling=ahead,
        short_step_seconds=short,
        max_steps_per_plan=steps,
    )


def regime(
    ahead: RunAhead, plans: Sequence[Any] = (), *, lock_step: bool = False, quarantine: bool = False
) -> Regime:
    return ahead.regime(plans, lock_step=lock_step, quarantine=quarantine)


def test_every_regime_has_rules():
    assert set(RULES) == set(Regime)


@pytest.mark.parametrize(("seconds", "found"), [(0.001, Regime.TWO), (0.005, Regime.ONE), (1.0, Regime.ONE)])
def test_two_steps_are_planned_ahead_where_steps_are_short(seconds, found):
    ahead = RunAhead(limits())
    assert regime(ahead) is Regime.ONE, "before any step"
    ahead.computed(2, 2, 2 * seconds)
    assert regime(ahead) is found
    ahead.computed(0, 1, 9.0)
    assert regime(ahead) is found, "a plan that was not begun says nothing"


def test_a_regime_excludes_those_after_it():
    ahead = RunAhead(limits())
    ahead.computed(1, 1, 0.001)
    plans = [SINGLE, SEVERAL]
    assert regime(ahead, [SINGLE]) is Regime.TWO
    assert regime(ahead, plans) is Regime.MULTI_STEP
    assert regime(ahead, plans, quarantine=True) is Regime.NONE
    assert regime(ahead, plans, quarantine=True, lock_step=True) is Regime.LOCK_STEP
    assert regime(RunAhead(limits(ahead=False))) is Regime.NONE


def test_only_a_plan_that_continues_follows_a_multi_step_plan_and_only_lock_step_awaits_drafts():
    assert [one for one in Regime if RULES[one].continues or not RULES[one].admits] == [Regime.MULTI_STEP]
    assert [one for one in Regime if RULES[one].awaits_drafts] == [Regime.LOCK_STEP]


@pytest.mark.parametrize(
    ("ahead", "multi_step", "rows", "steps"),
    [(True, True, 1, 4), (True, True, 8, 2), (True, False, 1, 1), (False, True, 1, 1)],
)
def test_a_plan_has_as_many_steps_as_executor_and_budget_allow(ahead, multi_step, rows, steps):
    found = RunAhead(limits(ahead=ahead))
    assert found.num_steps_max(rows) == 1
    found.reset(multi_step=multi_step)
    assert found.num_steps_max(rows) == steps


def test_plans_are_cut_once_and_only_if_they_have_several_steps():
    ahead = RunAhead(limits())
    ahead.reset(multi_step=True)
    assert not ahead.cut(3, [SINGLE])
    assert ahead.cut(3, [SEVERAL]) and not ahead.cut(3, [SEVERAL])
    assert ahead.cut(4, [SEVERAL])


def test_a_plan_that_stopped_short_is_over_with_the_next_that_does_not_continue_it():
    ahead = RunAhead(limits())
    ahead.computed(1, 3, 0.1)
    assert ahead.stopped
    ahead.planned(continues=True)
    assert ahead.stopped
    ahead.planned(continues=False)
    assert not ahead.stopped
