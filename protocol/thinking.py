"""frontend ──GetMarks──▶ detokenizer: automata over tokens for the marks around a model's reasoning.

A request may bound the tokens of its model's reasoning (`SamplingParams.thinking_token_budget`). The executor
counts them as they are sampled, and it has no text. The marks therefore travel with the request as tables
over tokens, which the detokenizer makes once for each text. A model need not spell a mark as its tokenizer
would, so the tables follow the mark's bytes through any tokens.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.message import Message, Request


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text as an automaton over token ids. Its state is the number of bytes of the text that the tokens so
    far end with.

    Attributes:
        length: bytes of the text: the state in which all of it has come.
        begins: the state after a token that continues no part of the text, where that is not 0.
        goes_on: by the state before, the state after a token, where it differs from `begins`.
        rest: by state, the tokens that write the rest of the text.
        blanks: tokens of blanks alone, where those may stand before the text.
    """

    length: int
    begins: dict[int, int]
    goes_on: tuple[dict[int, int], ...]
    rest: tuple[tuple[int, ...], ...]
    blanks: tuple[int, ...] = ()

    def after(self, state: int, token: int) -> int:
        """Return the state after a token."""
        found = self.goes_on[state].get(token) if state else None
        return self.begins.get(token, 0) if found is None else found


class Thinking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The marks of a request whose reasoning is bounded."""

    begin: Mark
    end: Mark
    is_open: bool
    """The prompt ends with `begin`: the reasoning has begun."""


class Marks(Message, frozen=True, kw_only=True):
    """Tables of both marks; None where the texts of the tokens are not known."""

    begin: Mark | None = None
    end: Mark | None = None


class GetMarks(Request[Marks], frozen=True, kw_only=True):
    """Ask for the tables of two marks: one that only blanks may precede, and one that ends the reasoning."""

    begin: str
    end: str
