"""Rules, and the noting of which were kept."""

from __future__ import annotations


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
