"""Metadata of a GGUF file, read key by key: each value is checked, each complaint names its key."""

from __future__ import annotations

import math
from typing import Any

from pageant.models.errors import CheckpointError
from pageant.models.gguf.container import Array, GGUFFile

__all__ = ["Metadata"]

_REMEDY = "Convert the model anew, or use another file."


class Metadata:
    """Values of a file, those of its architecture by their names without it.

    A key that begins with a dot is the architecture's own: `.block_count` is `llama.block_count`.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = self.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        return self._key(key) in self.file.metadata

    def get(self, key: str) -> Any:
        """Return the value; None where there is no such key."""
        return self.file.metadata.get(self._key(key))

    def count(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """Return a whole number. An array stands for it where all of its numbers are alike."""
        value = self._required(key, default)
        if isinstance(value, Array):
            numbers = {int(number) for number in value.numbers().tolist()}
            if len(numbers) != 1:
                raise self.wrong(key, f"{len(numbers)} different numbers", "one number for all layers")
            value = numbers.pop()
        if type(value) is not int or value < minimum:
            raise self.wrong(key, _shown(value), f"a whole number from {minimum} up")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive, finite number, as float32 would be written: 1e-05 rather than 9.999999747378752e-06."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(key, _shown(value), "a positive number")
        return float(f"{value:.7g}")

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, _shown(value), "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, _shown(value), "a string")
        return value

    def array(self, key: str) -> Array | None:
        """Return an array, unread; None where there is no such key."""
        value = self.get(key)
        if value is not None and not isinstance(value, Array):
            raise self.wrong(key, _shown(value), "an array")
        return value

    def wrong(self, key: str, found: str, expected: str, remedy: str = _REMEDY) -> CheckpointError:
        """Return an error that names the file and the key."""
        return self.file.wrong(self._key(key), found, expected, remedy)

    def missing(self, key: str, expected: str, remedy: str = _REMEDY) -> CheckpointError:
        """Return an error for a key that is not there."""
        return CheckpointError(self.file.path, f"no {self._key(key)}", expected, remedy)

    def _key(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise self.missing(key, "it in the file's metadata")
        return default if value is None else value


def _shown(value: object) -> str:
    return f"an array of {len(value)}" if isinstance(value, Array) else f"{value!r:.80}"
