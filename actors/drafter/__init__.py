"""The drafter: guesses what comes next, in an actor of its own."""

from __future__ import annotations

__all__: list[str] = []
