"""The parser of a chat's text: first what the model thinks, if it does, then what it says and calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pageant.actors.frontend.http.parsers.base import CallPiece, Said
from pageant.actors.frontend.http.parsers.calls import Calls
from pageant.actors.frontend.http.parsers.scanner import Reading, Scanner, as_content


class Marks(NamedTuple):
    """Around what a model thinks."""

    begin: str
    end: str


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
        self._text = Scanner()
        self._reader = self._read()

    def begin(self, prompt: str | None) -> None:
        """See `OutputParser`. A prompt may end with the mark after which the model thinks."""
        self._thinks = self._reasoning is not None and (prompt or "").rstrip().endswith(self._reasoning.begin)

    def feed(self, text: str, token_ids: Sequence[int], ended: bool, cut: bool = False) -> Said:
        """See `OutputParser`."""
        if not text and not ended:
            return NOTHING
        self._text.add(text, ended, cut)
        content, reasoning, calls = "", "", list[CallPiece]()
        for said in self._reader:
            if said is None:
                break
            content += said.content
            reasoning += said.reasoning
            calls += said.calls
        if self._calls_max is not None:
            calls = [call for call in calls if call.number < self._calls_max]
        if self._only_calls:
            content = ""
        return Said(content, reasoning if self._tells_reasoning else "", tuple(calls))

    def _read(self) -> Reading[None]:
        text = self._text
        if self._reasoning is not None:
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
