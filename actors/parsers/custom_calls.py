"""Calls of custom tools: functions to the model, with one argument `input`; to the client, a tool with a text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set

import msgspec

from pageant.actors.parsers.base import (
    CallPiece,
    OutputParser,
    Said,
    encodable,
)

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HEAD_BEGUN = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
_COMPLETE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_HALF = re.compile(r"(\\u[dD][89abAB][0-9a-fA-F]{2})?(\\(u[0-9a-fA-F]{0,3})?)?")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class CustomInput:
    """Reads the text out of a call's arguments, as they come.

    Arguments that are not `{"input": "..."}` are kept until their end; then the only text in them is the input, or,
    where there are more or none, all that was written.
    """

    def __init__(self) -> None:
        self._written = ""  # what is not read yet
        self._state = "before"

    def feed(self, written: str) -> str:
        """Return what of the text is known by now."""
        self._written += written
        if self._state == "before":
            if found := _HEAD.match(self._written):
                self._written, self._state = self._written[found.end() :], "within"
            elif not _HEAD_BEGUN.fullmatch(self._written):
                self._state = "other"
        return self._text() if self._state == "within" else ""

    def end(self) -> str:
        """Return the rest of the text: there will be no more."""
        if self._state == "after" or _HALF.fullmatch(self._written):
            return ""
        if self._state == "within":
            return self._written  # no escape that JSON knows
        try:
            found = msgspec.json.decode(self._written)
        except (msgspec.DecodeError, RecursionError):
            return self._written
        texts = list(found.values()) if isinstance(found, dict) else [found]
        if not texts or (isinstance(found, dict) and found.get("input") is None and texts == [None]):
            return ""
        return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else self._written

    def _text(self) -> str:
        found = _COMPLETE.match(self._written)
        end = found.end() if found is not None else 0
        if self._written[end : end + 1] == '"':
            self._state = "after"
        elif half := _HIGH_SURROGATE.search(self._written[:end]):
            end = half.start()
        text, self._written = self._written[:end], self._written[end:]
        return encodable(json.loads(f'"{text}"', strict=False))


class CustomCalls:
    """An `OutputParser` that tells calls of custom tools as such.

    Args:
        inner: tells all calls as those of functions.
        names: of the custom tools.
    """

    def __init__(self, inner: OutputParser, names: Set[str]) -> None:
        self._inner, self._names = inner, names
        self._open: tuple[int, CustomInput] | None = None

    @property
    def num_reasoning_tokens(self) -> int:
        """See `OutputParser`."""
        return self._inner.num_reasoning_tokens

    def begin(self, prompt: str | None) -> None:
        """See `OutputParser`."""
        self._inner.begin(prompt)

    def feed(self, text: str, token_ids: Sequence[int], ended: bool, cut: bool = False) -> Said:
        """See `OutputParser`."""
        said = self._inner.feed(text, token_ids, ended, cut)
        calls = [told for piece in said.calls for told in self._told(piece)]
        if ended:
            calls += self._end()
        return said._replace(calls=tuple(calls))

    def _told(self, piece: CallPiece) -> list[CallPiece]:
        before: list[CallPiece] = []
        if self._open is not None and self._open[0] != piece.number:
            before = self._end()
        if piece.name is not None and piece.name in self._names:
            self._open = piece.number, CustomInput()
            text = self._open[1].feed(piece.arguments)
            return [*before, piece._replace(arguments=text, is_custom=True)]
        if self._open is None:
            return [*before, piece]
        text = self._open[1].feed(piece.arguments)
        return [*before, piece._replace(arguments=text, is_custom=True)] if text else before

    def _end(self) -> list[CallPiece]:
        if self._open is None:
            return []
        (number, reader), self._open = self._open, None
        rest = reader.end()
        return [CallPiece(number, rest, is_custom=True)] if rest else []
