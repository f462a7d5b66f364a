"""Events that differ from one another in a single text, as nearly all of a stream do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pageant.actors.http.streams import Frame, encode

_MARK = "\ue000text\ue000"


class Template:
    """The constant parts of an event around its text, found by encoding a mark once, so that both write the
    same.

    Args:
        make: the body of the event for a choice's index and a text.
        frame: turns a body into an event.
    """

    def __init__(self, make: Callable[[int, str], Any], frame: Frame) -> None:
        self._make, self._frame = make, frame
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def fill(self, index: int, text: str) -> bytes:
        """The event with a text."""
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._cut(index)
        return around[0] + encode(text) + around[1]

    def _cut(self, index: int) -> tuple[bytes, bytes]:
        head, _, tail = self._frame(encode(self._make(index, _MARK))).partition(encode(_MARK))
        return head, tail
