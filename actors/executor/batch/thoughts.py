"""Budgets of thinking: how many tokens of thoughts a row has, and which tokens are forced once the budget is used up.

After the mark that begins them, thoughts have at most so many tokens; then the tokens of the mark that ends them are
drawn, whatever the model would say. What is forced is a function of the output alone, so it is the same after drafts, a
preemption or a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from pageant.protocol.thinking import Thinking

__all__ = ["ThoughtBudget"]

REACH = 256  # tokens ahead of those that are known, at most: steps at hand, with their drafts


class _Phase(Enum):
    """Phase of an output: before, within or after the thoughts."""

    BEFORE = 0
    WITHIN = 1
    AFTER = 2


class _State(NamedTuple):
    """State of an output: its phase, how many tokens of thoughts it has, and the state of the mark that may come."""

    phase: _Phase
    num_tokens: int = 0
    mark: int = 0


_AFTER = _State(_Phase.AFTER)


class ThoughtBudget:
    """Budget of thinking of one row.

    Args:
        thinking: the marks that begin and end thoughts.
        budget: how many tokens of thoughts the row may have.
        output: the row's tokens so far.
    """

    def __init__(self, thinking: Thinking, budget: int, output: Iterable[int]) -> None:
        self._thinking, self._budget = thinking, budget
        self._blanks = frozenset(thinking.begin.blanks)
        self._state = self._follow(_State(_Phase.WITHIN if thinking.is_open else _Phase.BEFORE), output)

    def take(self, token: int) -> None:
        """Take in a token that was drawn."""
        self._state = self._next(self._state, token)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more is forced."""
        return self._state is _AFTER

    @property
    def is_near(self) -> bool:
        """Tell whether a token may be forced at a place that is packed before all tokens before it are known."""
        return not self.is_over and self._state.num_tokens + REACH >= self._budget

    def forced(self, ahead: Iterable[int] = ()) -> int | None:
        """Return the token that comes next, after some drafts; None where the model chooses."""
        state = self._follow(self._state, ahead)
        if state.phase is not _Phase.WITHIN or state.num_tokens < self._budget:
            return None
        return self._thinking.end.rest[state.mark][0]

    def _follow(self, state: _State, tokens: Iterable[int]) -> _State:
        for token in tokens:
            state = self._next(state, token)
        return state

    def _next(self, state: _State, token: int) -> _State:
        if state.phase is _Phase.AFTER:
            return state
        if state.phase is _Phase.WITHIN:
            end = self._thinking.end
            after = end.after(state.mark, token)
            return _AFTER if after == end.length else _State(_Phase.WITHIN, state.num_tokens + 1, after)
        begin = self._thinking.begin
        after = begin.after(state.mark, token)
        if after == begin.length:
            return _State(_Phase.WITHIN)
        if after or (not state.mark and token in self._blanks):
            return _State(_Phase.BEFORE, 0, after)
        return _AFTER
