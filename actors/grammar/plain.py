"""A grammar backend in plain Python: derive from `PlainGrammar`, and give it matchers that are `PlainMatcher`s."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

import numpy as np

from pageant.actors.grammar.actor import Grammar
from pageant.actors.grammar.errors import GrammarError
from pageant.actors.grammar.masking import Bits
from pageant.protocol.structured_outputs import StructuredOutputsParams

__all__ = ["GrammarError", "PlainBackend", "PlainGrammar", "PlainMatcher"]


class PlainMatcher(ABC):
    """Follows one output along a grammar, token by token."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a matcher at the same place, which goes on by itself."""

    @abstractmethod
    def take(self, token_id: int) -> bool:
        """Go on by one token, which may be an end token; return whether the grammar allows it here."""

    @abstractmethod
    def allowed(self) -> Iterable[int]:
        """Return the ids of the tokens that may come next; end tokens among them where the output may end."""

    def deep_copy(self) -> Self:
        """See `LLMatcher`."""
        return self.copy()

    def consume_tokens(self, token_ids: Sequence[int]) -> bool:
        """See `LLMatcher`."""
        return all(self.take(token) for token in token_ids)

    def is_error(self) -> bool:
        """See `LLMatcher`."""
        return False

    def stop_reason(self) -> str:
        """See `LLMatcher`."""
        return ""


class PlainBackend(Protocol):
    """Compiles what requests ask for, for one vocabulary. Two threads may call it at once."""

    def compile(self, asked: StructuredOutputsParams) -> PlainMatcher:
        """Return a matcher at the beginning, to be copied.

        Raises:
            GrammarError: it makes no sense, or is of a kind that this backend does not know.
        """


class InPython:
    """See `DraftMasking`. Matchers are asked one after another, with the GIL."""

    def consume(self, work: Sequence[tuple[Any, int]]) -> Sequence[bool]:
        """See `Masking`."""
        return [matcher.take(token) for matcher, token in work]

    def mask(self, work: Sequence[tuple[Any, int]], bits: Bits) -> None:
        """See `Masking`."""
        for matcher, row in work:
            _write(matcher, bits, row)

    def mask_drafts(self, work: Sequence[tuple[Any, int, Sequence[int]]], bits: Bits) -> None:
        """See `DraftMasking`."""
        for matcher, first, tokens in work:
            _write(matcher, bits, first)
            for row, token in enumerate(tokens, first + 1):
                if not matcher.take(token):
                    break
                _write(matcher, bits, row)


def _write(matcher: PlainMatcher, bits: Bits, row: int) -> None:
    """Write what may follow to one row. Mutates `bits`."""
    words = bits[row].view(np.uint32)
    words[:] = 0
    tokens = np.fromiter(matcher.allowed(), np.int64)
    np.bitwise_or.at(words, tokens // 32, np.uint32(1) << (tokens % 32).astype(np.uint32))


class PlainGrammar(Grammar):
    """The grammar actor over a backend of your own: override `open_backend`.

    The actor follows sequences, drafts and restarts; the backend compiles, and its matchers say what may follow.
    """

    isolates = False

    def open_backend(self) -> PlainBackend:
        """Return the backend. Called once, in a thread, before the first grammar is compiled."""
        raise NotImplementedError

    def make_masking(self) -> InPython:
        """See `Grammar`."""
        return InPython()
