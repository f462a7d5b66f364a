"""Errors of checkpoints."""

from __future__ import annotations

from pathlib import Path

from pageant.protocol.errors import ConfigurationError

__all__ = ["CheckpointError"]


class CheckpointError(ConfigurationError):
    """A checkpoint that cannot be used.

    The message names the path, what was found there, what was expected, and what to do about it.
    """

    def __init__(self, path: Path | str, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"{path}: {found}; expected {expected}. {remedy}")
        self.path = Path(path)
        self.found = found
        self.expected = expected
        self.remedy = remedy
