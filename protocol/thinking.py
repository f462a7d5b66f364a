"""frontend ──GetMarks──▶ detokenizer: how the marks around what a model thinks are spelt in its tokens.

A request may bound how many tokens its model thinks (`SamplingParams.thinking_token_budget`). The executor counts them
as they are drawn, and has no text: the marks travel with the request as tables over tokens, which the detokenizer makes
once for each text. A model need not write a mark as its tokenizer would, so that the tables follow its letters through
any tokens.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.message import Message, Request


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text as an automaton over token ids. Its state is how many bytes of the text the tokens so far end with.

    Attributes:
        length: of the text in bytes: the state in which all of it has come.
        begins: the state after a token that follows none of it, where that is not 0.
        goes_on: by the state before it, the state after a token, where it is another than `begins` says.
        rest: by state, the tokens that write what is left of the text.
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
    """The marks of a request whose thoughts are bounded. `is_open`: its prompt ends with `begin`."""

    begin: Mark
    end: Mark
    is_open: bool


class Marks(Message, frozen=True, kw_only=True):
    """Both marks; None where the tokens' own texts are not known."""

    begin: Mark | None = None
    end: Mark | None = None


class GetMarks(Request[Marks], frozen=True, kw_only=True):
    """Ask for the tables of two marks: one that may only be preceded by blanks, and one that ends what follows it."""

    begin: str
    end: str
