"""Rules, and the noting of which were kept."""

from __future__ import annotations

from typing import Any

from pageant.protocol.roles import Role


def explain_role(cls: Any, role: Role) -> str:
    """Say which role a class has, and how to take the one that it needs."""
    found: Role | None = getattr(cls, "role", None)
    name = role.name.upper()
    return (
        f"{getattr(cls, '__qualname__', cls)} has {'no role' if found is None else f'the role {found.name!r}'}; write "
        f"`role = {name}` in the class (from pageant.protocol.roles import {name})"
    )


class BrokenRule(AssertionError):
    """A component broke a rule of its conversation; says which, and how."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class Rules:
    """The rules of one conversation, as far as they have been exercised."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}

    def must(self, rule: str, kept: bool, detail: str = "it does not hold") -> None:
        """Notes that a rule is kept, or raises `BrokenRule`."""
        if not kept:
            raise BrokenRule(rule, detail)
        self._kept[rule] = None

    @property
    def kept(self) -> tuple[str, ...]:
        """Every rule that was exercised."""
        return tuple(self._kept)
