"""Parsers of a chat's text: content, reasoning, and calls of tools.

Every choice of a chat has a parser of its own. It reads the choice's text exactly once, in order, and
classifies each delta. Completions have none: their text is content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class CallPiece(NamedTuple):
    """The next of a tool call: `number` is which of this message's calls, from 0; its id and name come with its first
    piece, its arguments, as JSON, in as many as they come in. A custom tool has a text instead."""

    number: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    is_custom: bool = False


class Said(NamedTuple):
    """A parsed delta: the meaning of a piece of text."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


def encodable(text: str) -> str:
    """A text in which pairs of surrogates, as escapes write them, are the characters that they mean, and a lone one,
    which no encoding has, is U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def joined(pieces: Sequence[CallPiece]) -> list[CallPiece]:
    """Whole calls of their pieces."""
    calls: dict[int, CallPiece] = {}
    for piece in pieces:
        before = calls.get(piece.number)
        calls[piece.number] = (
            piece if before is None else before._replace(arguments=before.arguments + piece.arguments)
        )
    return list(calls.values())


class OutputParser(Protocol):
    """Reads one choice's text as it comes."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of what the model thought, so far."""

    def begin(self, prompt: str | None) -> None:
        """The prompt is known, before the first piece; None where it has no text."""

    def feed(self, text: str, token_ids: Sequence[int], ended: bool, cut: bool = False) -> Said:
        """Return what the next piece means. What is not yet known to mean anything is kept, until more comes or it has
        `ended`; with `cut`, for want of room."""
