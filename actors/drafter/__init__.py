"""The drafter: makes drafts of the next tokens, in an actor of its own."""

from __future__ import annotations

__all__: list[str] = []
