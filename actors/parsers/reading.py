"""The parser of a chat's text: first what the model thinks, if it does, then what it says and calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pageant.actors.parsers.base import CallPiece, Said
from pageant.actors.parsers.calls import Calls
from pageant.actors.parsers.scanner import Reading, Scanner, as_content


class Marks(NamedTuple):
    """The marks around a model's reasoning. `ids` are their token ids, if each mark is one token."""

    begin: str
    end: str
    ids: tuple[int, int] | None = None


class ReasoningTokens:
    """Counts the tokens between the marks.

    Where the marks are no single tokens, the tokens of a piece count by the share of its text that was thought: exactly
    for pieces of one token.
    """

    def __init__(self, marks: Marks) -> None:
        self._ids = marks.ids
        self._state = "before"
        self.count = 0

    def begin(self) -> None:
        """The prompt ends with the first mark."""
        self._state = "within"

    def add(self, token_ids: Sequence[int], said: Said) -> None:
        """Count those of a piece, which means what was `said`."""
        if self._ids is None:
            told = len(said.content) + sum(len(call.arguments) for call in said.calls)
            thought = len(said.reasoning)
            if thought:
                self.count += round(len(token_ids) * thought / (thought + told))
            return
        for token in token_ids if self._state != "after" else ():
            if token == self._ids[1]:
                self._state = "after"
                return
            if self._state == "within":
                self.count += 1
            elif token == self._ids[0]:
                self._state = "within"


NOTHING = Said()


class ChatParser:
    """See `OutputParser`.

    Args:
        calls: what reads calls of tools; None where there are none.
        one_call: further ones are passed over.
        only_calls: what comes after the thoughts is calls alone, so that nothing of it is content, however it ends.
        tells_reasoning: what it thinks is passed on.
    """

    def __init__(
        self,
        reasoning: Marks | None,
        calls: Calls | None,
        *,
        one_call: bool = False,
        only_calls: bool = False,
        tells_reasoning: bool = True,
    ) -> None:
        self._reasoning, self._calls = reasoning, calls
        self._calls_max = 1 if one_call else None
        self._only_calls = only_calls
        self._tells_reasoning = tells_reasoning
        self._thinks = False
        self._tokens = ReasoningTokens(reasoning) if reasoning is not None else None
        self._text = Scanner()
        self._reader = self._read()

    @property
    def num_reasoning_tokens(self) -> int:
        """See `OutputParser`."""
        return self._tokens.count if self._tokens is not None else 0

    def begin(self, prompt: str | None) -> None:
        """See `OutputParser`. A prompt may end with the mark after which the model thinks."""
        self._thinks = self._reasoning is not None and (prompt or "").rstrip().endswith(self._reasoning.begin)
        if self._thinks and self._tokens is not None:
            self._tokens.begin()
        if self._calls is not None:
            self._calls.begin(prompt)

    def feed(self, text: str, token_ids: Sequence[int], ended: bool, cut: bool = False) -> Said:
        """See `OutputParser`."""
        if not text and not ended and not token_ids:
            return NOTHING
        self._text.add(text, ended, cut)
        content, reasoning, calls = "", "", list[CallPiece]()
        for said in self._reader:
            if said is None:
                break
            content += said.content
            reasoning += said.reasoning
            calls += said.calls
        if self._tokens is not None:
            self._tokens.add(token_ids, Said(content, reasoning, tuple(calls)))
        if self._calls_max is not None:
            calls = [call for call in calls if call.number < self._calls_max]
        if self._only_calls:
            content = ""
        return Said(content, reasoning if self._tells_reasoning else "", tuple(calls))

    def _read(self) -> Reading[None]:
        text = self._text
        if self._reasoning is not None and not (self._calls is not None and self._calls.reads_thoughts):
            yield from self._read_reasoning(self._reasoning)
        if self._calls is not None:
            yield from self._calls.read(text)
        yield from text.until((), as_content)

    def _read_reasoning(self, marks: Marks) -> Reading[None]:
        text = self._text
        text.mark()
        if not self._thinks:
            yield from text.blanks()
            if (yield from text.comes(marks.begin)) is None:
                if before := text.since_mark():
                    yield as_content(before)
                return
        yield from text.blanks()
        yield from text.until((marks.end,), _as_reasoning)
        yield from text.blanks()


def _as_reasoning(text: str) -> Said:
    return Said(reasoning=text)
