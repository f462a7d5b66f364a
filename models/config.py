"""Reading a checkpoint's config.json key by key: each value is checked, each complaint names its key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.models.errors import CheckpointError

__all__ = ["REQUIRED", "Config", "read_json"]

_REMEDY = "Check that the file is the model's own and was downloaded whole."


class _Required:
    """Stands for "no default"."""


REQUIRED = _Required()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises CheckpointError when it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(path, f"not readable as JSON ({error})", "a JSON object", _REMEDY) from error
    if not isinstance(content, dict):
        raise CheckpointError(path, f"a JSON {type(content).__name__}", "a JSON object", _REMEDY)
    return content


class Config:
    """A view of (part of) a config.json. A key that is null counts as absent, as transformers has it.

    Getters return the default for an absent key, and raise CheckpointError for an absent key without a
    default and for a value out of range.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self.values = values
        self.path = path
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def section(self, *keys: str) -> Config:
        """The object under the first of `keys` that is present; an empty one when none is."""
        for key in keys:
            if key in self:
                value = self.values[key]
                if not isinstance(value, dict):
                    raise self.wrong(key, value, "an object")
                return Config(value, self.path, f"{self._prefix}{key}.")
        return Config({}, self.path, f"{self._prefix}{keys[0]}.")

    def count(self, key: str, default: int | _Required = REQUIRED, minimum: int = 1) -> int:
        """A whole number, no less than `minimum`."""
        expected = f"a whole number from {minimum} up"
        value = self._get(key, default, expected)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.wrong(key, value, expected)
        return value

    def number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A positive, finite number."""
        value = self._get(key, default, "a positive number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, value, "a positive number")
        return float(value)

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

    def wrong(self, key: str, value: object, expected: str, remedy: str = _REMEDY) -> CheckpointError:
        """An error that names the key; the caller raises it."""
        return CheckpointError(self.path, f"{self._prefix}{key} is {value!r}", expected, remedy)

    def _get(self, key: str, default: object, expected: str) -> object:
        if key in self:
            return self.values[key]
        if default is REQUIRED:
            raise CheckpointError(self.path, f"no {self._prefix}{key}", expected, _REMEDY)
        return default
