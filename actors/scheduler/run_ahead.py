"""Running ahead: how many steps are planned while one is computed, and how many steps a plan has.

A request that decodes will have one more token, and the plan does not depend on which. So while a step is computed
the next is planned. A request that turns out to have ended costs one wasted row.

From a step's tokens to the next plan, messages pass the scheduler, the block manager and two processes, which
compete for cores with the step itself. Where steps take hardly longer than that, devices would wait for plans.
Two steps are then planned ahead.

While no request waits, and no actor needs each token as it comes, a plan has several steps, so that the work between
two steps is done once for all of them. Only a plan that continues such a plan may follow it until its outcome is
known. A request that comes meanwhile has it cut short.

One regime holds at a time; `RULES` says what it excludes. Two more things exclude multi-step plans whatever the regime:
a speculator, since each step waits for drafts, and a row whose token may be deferred (`Running.num_steps`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from pageant.actors.scheduler.backlog import Limits
from pageant.actors.scheduler.plans import Computing


class Regime(Enum):
    """The way in which steps are planned ahead."""

    LOCK_STEP = auto()
    """Drafts are on their way that pay only if all rows share steps."""
    NONE = auto()
    """Tokens are awaited after each step: as configured, or to find the request that an executor dies of."""
    MULTI_STEP = auto()
    """A plan is under way that may end before its last step."""
    TWO = auto()
    """Steps are short."""
    ONE = auto()
    """Steps take their time."""


@dataclass(frozen=True)
class Rules:
    """Permissions of a regime."""

    depth: int
    """Steps that may be planned while one is computed."""
    awaits_drafts: bool = False
    """Nothing is planned while drafts are on their way."""
    admits: bool = True
    """A plan may come while requests wait, and admit some of them."""
    continues: bool = False
    """A plan is of the rows of the last one under way, and is skipped if that one ends early."""

    def depth_of(self, stages: int) -> int:
        """Return how many plans there may be behind the one that is over next, on so many stages of layers.

        Each stage has a plan of its own where plans may run ahead at all.
        """
        return self.depth + stages - 1 if self.depth else 0


RULES = {
    Regime.LOCK_STEP: Rules(depth=0, awaits_drafts=True),
    Regime.NONE: Rules(depth=0),
    Regime.MULTI_STEP: Rules(depth=1, admits=False, continues=True),
    Regime.TWO: Rules(depth=2),
    Regime.ONE: Rules(depth=1),
}


class RunAhead:
    """Decides the regime, and how many steps a plan has. Belongs to the planner; a core without I/O."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Seconds of the last step; infinite before the first.
        self._step_seconds = math.inf
        # The most steps of a plan; 1 if the executor takes no multi-step plans.
        self._steps_max = 1
        # All plans up to this number have been asked to end early.
        self._cut = 0
        # The last computed plan ended early: no plan that continues it is computed.
        self._stopped = False

    def reset(self, *, multi_step: bool) -> None:
        """Start with a new executor, whose plans are numbered from one and may have several steps."""
        self._cut = 0
        several = multi_step and self._limits.async_scheduling
        self._steps_max = self._limits.max_steps_per_plan if several else 1

    @staticmethod
    def has_multi_step(computing: Sequence[Computing]) -> bool:
        """Tell whether a plan is under way that may end before its last step."""
        return any(step.may_end_early for step in computing)

    def regime(self, computing: Sequence[Computing], *, lock_step: bool, quarantine: bool) -> Regime:
        """Return the regime that holds with these plans under way: the first that applies.

        Args:
            lock_step: rows wait for one another's drafts.
            quarantine: suspects of an executor's death run alone.
        """
        if lock_step:
            return Regime.LOCK_STEP
        if not self._limits.async_scheduling or quarantine:
            return Regime.NONE
        if self.has_multi_step(computing):
            return Regime.MULTI_STEP
        return Regime.TWO if self._step_seconds < self._limits.short_step_seconds else Regime.ONE

    def rules(self, regime: Regime) -> Rules:
        """Return what a regime permits. A device without delays gets no plan that continues one under way: it
        would only cost an exchange, in vain where the first ends early.
        """
        rules = RULES[regime]
        return replace(rules, depth=0) if rules.continues and not self._limits.continues_plans else rules

    @property
    def stopped(self) -> bool:
        """Tell whether the last computed plan ended early, so that none that continues it is computed."""
        return self._stopped

    def num_steps_max(self, num_rows: int) -> int:
        """Return the most steps of a plan of so many rows, within the token budget."""
        return min(self._steps_max, self._limits.max_num_batched_tokens // max(1, num_rows))

    def cut(self, plan: int, computing: Sequence[Computing]) -> bool:
        """Record that all plans up to this number are to end early. Return whether any can that was not asked yet."""
        if self._cut == plan or not self.has_multi_step(computing):
            return False
        self._cut = plan
        return True

    def planned(self, *, continues: bool) -> None:
        """Record a new plan."""
        self._stopped &= continues

    def computed(self, num_steps: int, num_planned: int, seconds: float) -> None:
        """Record that a plan of `num_planned` steps is over, after `num_steps`, which took `seconds` in all."""
        self._stopped = num_steps < num_planned
        if num_steps:
            self._step_seconds = seconds / num_steps
