"""Rows of the table: a name, what becomes of it here, and which of its values ask for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pageant.protocol.checks import to_builtin


class Kind(StrEnum):
    """The status of a vLLM name here."""

    SAME = "same"
    RENAMED = "renamed"
    NO_EFFECT = "no effect"
    NOT_YET = "not yet"


class Form(StrEnum):
    """The form of a flag's value on a command line."""

    FLAG = "flag"  # --x or --no-x
    VALUE = "value"
    OPTIONAL = "optional value"
    MANY = "values"


Settings = dict[str, Any]
"""Settings of ours, as `Engine` takes them."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A name of vLLM's.

    Attributes:
        meaning: what it does here, or why it does nothing, or why it is not there; a clause without a full stop.
        here: our name for it, where that is another.
        neutral: values that ask for nothing, besides None; NOT_YET refuses all others.
        nearest: what to use instead, for messages about a refused value.
        form, short: how it is written on a command line, and its short spellings.
        text: whether a command line's value is a text, even where it could be a number.
        read: turns a value into ours; raises ValueError where it is none of the values expected.
    """

    name: str
    kind: Kind
    meaning: str
    here: str | None = None
    neutral: tuple[Any, ...] = ()
    nearest: str = ""
    form: Form = Form.VALUE
    short: tuple[str, ...] = ()
    text: bool = False
    read: Callable[[Any], Any] | None = None

    def is_neutral(self, value: Any) -> bool:
        """Tell whether a value asks for nothing."""
        if value is None:
            return True
        value = getattr(value, "value", value)  # members of an enum
        if isinstance(value, set | frozenset | tuple):
            value = list(value)
        if isinstance(value, dict | list | str) and not value:
            return True
        if isinstance(value, list) and all(one is None for one in value):
            return True
        value = to_builtin(value)
        return any(type(value) is type(one) and value == one for one in self.neutral) or any(
            _are_numbers(value, one) and value == one for one in self.neutral
        )

    def refusal(self, value: Any) -> str:
        """Return why a value that is not neutral is refused."""
        instead = self.expected() if self.neutral else "none"
        advice = f"; {self.nearest}" if self.nearest else ""
        return f"found {value!r:.200}; expected {instead}: {self.meaning}{advice}"

    def expected(self) -> str:
        """The neutral values, for messages."""
        return " or ".join(repr(one) for one in self.neutral)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def same(name: str, meaning: str, **more: Any) -> Row:
    """A name that means here what it means there."""
    return Row(name=name, kind=Kind.SAME, meaning=meaning, **more)


def renamed(name: str, here: str, meaning: str, **more: Any) -> Row:
    """A name that is taken for another of ours."""
    return Row(name=name, kind=Kind.RENAMED, here=here, meaning=meaning, **more)


def no_effect(name: str, meaning: str, **more: Any) -> Row:
    """A name whose every value is taken and changes nothing."""
    return Row(name=name, kind=Kind.NO_EFFECT, meaning=meaning, **more)


def not_yet(name: str, neutral: Any, meaning: str, nearest: str = "", **more: Any) -> Row:
    """A name of which only the values that ask for nothing are taken.

    Args:
        neutral: such a value besides None, or a tuple of them.
    """
    values = neutral if isinstance(neutral, tuple) else (neutral,)
    more.setdefault("form", Form.FLAG if any(isinstance(one, bool) for one in values) else Form.VALUE)
    return Row(
        name=name,
        kind=Kind.NOT_YET,
        neutral=tuple(one for one in values if one is not None),
        meaning=meaning,
        nearest=nearest,
        **more,
    )


def flag(row: Row) -> Row:
    """The same, written as `--name` or `--no-name`."""
    return replace(row, form=Form.FLAG)


def table(*rows: Row) -> dict[str, Row]:
    """Rows by their names, each of which stands once."""
    return _by_name(rows)


def _by_name(rows: Iterable[Row]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in rows:
        assert row.name not in found, f"{row.name} stands twice"
        found[row.name] = row
    return found
