"""Outputs that a request gives itself, token by token, to have them scored: nothing of them is drawn.

Has the methods of `thoughts.ThoughtBudget`, and forces tokens in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["GivenTokens"]


class GivenTokens:
    """The tokens of one row's output.

    Args:
        tokens: all of them, in order.
        count: how many the row has by now.
    """

    def __init__(self, tokens: Sequence[int], count: int) -> None:
        self._tokens, self._count = tokens, count

    def take(self, token: int) -> None:
        """Count a token that came."""
        self._count += 1

    @property
    def is_over(self) -> bool:
        """Return whether all of them are there."""
        return self._count >= len(self._tokens)

    @property
    def is_near(self) -> bool:
        """Return whether a token may be forced at a place that is packed before all tokens before it are known."""
        return not self.is_over

    def forced(self, ahead: Iterable[int] = ()) -> int | None:
        """Return the token that comes next, after some drafts; None behind the last."""
        place = self._count + sum(1 for _ in ahead)
        return self._tokens[place] if place < len(self._tokens) else None
