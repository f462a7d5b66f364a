"""Reading a checkpoint's config.json key by key: each value is checked, each complaint names its key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from pageant.models.errors import CheckpointError

__all__ = ["REQUIRED", "Config", "read_json"]

_REMEDY = "Check that the file is the model's own and was downloaded whole."

# What is gone through one by one before any weight is seen, and at most how many of it: ten times what models have.
_MOST = {"num_hidden_layers": 1000, "num_experts": 5000}


class _Required:
    """Stands for "no default"."""


REQUIRED = _Required()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises CheckpointError when it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(path, f"not readable as JSON ({error})", "a JSON object", _REMEDY) from error
    if not isinstance(content, dict):
        raise CheckpointError(path, f"a JSON {type(content).__name__}", "a JSON object", _REMEDY)
    return content


class Config:
    """A view of (part of) a config.json. A key that is null counts as absent, as transformers has it.

    Getters return the default for an absent key, and raise CheckpointError for an absent key without a
    default and for a value out of range.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        path: Path,
        prefix: str = "",
        other_names: Mapping[str, str] | None = None,
    ) -> None:
        self.values = values
        self.path = path
        self._prefix = prefix
        self._other_names = other_names or {}

    @property
    def prefix(self) -> str:
        """The text before its keys in messages."""
        return self._prefix

    def using(self, other_names: Mapping[str, str]) -> Config:
        """Return this view, in which keys may also be called by the other names that a family has for them."""
        return Config(self.values, self.path, self._prefix, other_names)

    def __contains__(self, key: str) -> bool:
        return self.values.get(self._key(key)) is not None

    def is_null(self, key: str) -> bool:
        """Tell whether the key is there and says null, for the few that mean something by it."""
        key = self._key(key)
        return key in self.values and self.values[key] is None

    def section(self, *keys: str) -> Config:
        """The object under the first of `keys` that is present; an empty one when none is."""
        for key in keys:
            if key in self:
                value = self.values[self._key(key)]
                if not isinstance(value, dict):
                    raise self.wrong(key, value, "an object")
                return Config(value, self.path, f"{self._prefix}{key}.")
        return Config({}, self.path, f"{self._prefix}{keys[0]}.")

    def count(self, key: str, default: int | _Required = REQUIRED, minimum: int = 1) -> int:
        """A whole number, no less than `minimum`, and not so large that going through so many would never end."""
        most = _MOST.get(key)
        expected = f"a whole number from {minimum} {'up' if most is None else f'to {most}'}"
        value = self._get(key, default, expected)
        if type(value) is not int or value < minimum or (most is not None and value > most):
            raise self.wrong(key, value, expected)
        return value

    def number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A positive, finite number."""
        value = self._get(key, default, "a positive number")
        if not _is_positive(value):
            raise self.wrong(key, value, "a positive number")
        return float(value)

    def number_or_none(self, key: str, default: float) -> float | None:
        """A positive, finite number, or None where the key says null."""
        return None if self.is_null(key) else self.number(key, default)

    def count_or_none(self, key: str, default: int) -> int | None:
        """A whole number from 1 up, or None where the key says null."""
        return None if self.is_null(key) else self.count(key, default)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        """A string."""
        value = self._get(key, default, "a string")
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._get(key, [], "a list of strings")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, value, "a list of strings")
        return tuple(value)

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers from 0 up; empty when absent."""
        value = self._get(key, [], "a list of whole numbers")
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.wrong(key, value, "a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive, finite numbers; empty when absent."""
        value = self._get(key, [], "a list of positive numbers")
        if not isinstance(value, list) or not all(map(_is_positive, value)):
            raise self.wrong(key, value, "a list of positive numbers")
        return tuple(map(float, value))

    def refuse(self, key: str, supported: object, remedy: str) -> None:
        """Raise unless the key is absent, null, or says the one thing that is supported."""
        if key in self and self.values[self._key(key)] != supported:
            raise self.wrong(key, self.values[self._key(key)], repr(supported), remedy)

    def wrong(self, key: str, value: object, expected: str, remedy: str = _REMEDY) -> CheckpointError:
        """An error that names the key; the caller raises it."""
        return CheckpointError(self.path, f"{self._prefix}{self._key(key)} is {value!r}", expected, remedy)

    def _key(self, key: str) -> str:
        """The name under which a key is in the file."""
        other = self._other_names.get(key)
        return other if other is not None and key not in self.values else key

    def _get(self, key: str, default: object, expected: str) -> object:
        if key in self:
            return self.values[self._key(key)]
        if default is REQUIRED:
            raise CheckpointError(self.path, f"no {self._prefix}{self._key(key)}", expected, _REMEDY)
        return default


def _is_positive(value: object) -> TypeGuard[float]:
    """Tell whether a value is a positive, finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
