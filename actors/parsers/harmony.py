"""Harmony, the format of gpt-oss: an answer is messages in channels, of thoughts, calls and what is said.

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

The first message has no `<|start|>assistant`, since the prompt ends with it. A recipient may stand before the channel.
https://github.com/openai/harmony (format)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pageant.actors.parsers.base import Said
from pageant.actors.parsers.calls import NO_SCHEMAS, Calls, Schemas
from pageant.actors.parsers.scanner import Reading, Scanner, Unfinished, as_content

__all__ = ["CALL", "FINAL", "THOUGHT", "THOUGHT_END", "Harmony"]

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_LAST = ("<|end|>", "<|return|>", "<|call|>")
_ENDS = (*_LAST, _START, _CHANNEL)
"""What a message ends before: a mark of its end, or the beginning of another."""
THOUGHT, THOUGHT_END = f"{_CHANNEL}analysis{_MESSAGE}", f"<|end|>{_START}assistant"
CALL = f"{_CHANNEL}commentary to=functions.NAME <|constrain|>json{_MESSAGE}"
FINAL = f"{_CHANNEL}final{_MESSAGE}"
_FUNCTIONS = "functions."
_BEGINS = (_START, _CHANNEL, _MESSAGE, " to=", "to=")
_NAMED = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class Harmony(Calls):
    """Messages of all channels. Those to others than the request's tools are thoughts.

    Two messages of thoughts are two lines, and what is said in two messages is two paragraphs.

    Text that begins no message is the body of the one that the prompt ends in, or else content.
    """

    reads_thoughts = True

    def __init__(self, new_id: Callable[[], str], schemas: Schemas = NO_SCHEMAS) -> None:
        super().__init__(new_id, schemas)
        self._header = ""
        """The part of the first message's header that the prompt ends with."""
        self._is_begun = False
        """The prompt ends within the body of a message."""
        self._told: set[str] = set()
        """What stands between the messages of each kind that there was one of."""

    def begin(self, prompt: str | None) -> None:
        """See `Calls`."""
        _, start, last = (prompt or "").rpartition(_START)
        header, message, body = last.partition(_MESSAGE)
        if start and not any(mark in body for mark in _LAST):
            self._header, self._is_begun = header, bool(message)

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        header = self._header if self._is_begun else (yield from self._read_header(text, self._header))
        yield from self._read_body(text, self._header if header is None else header)
        while True:
            yield from text.comes(*_LAST)
            yield from text.blanks()
            header = yield from self._read_header(text, "")
            if header is None:
                break
            yield from self._read_body(text, header)
        yield from text.until((), as_content)

    def _read_header(self, text: Scanner, known: str) -> Reading[str | None]:
        """Read the header of the next message, of which some is `known`; None where no message follows.

        A header that is cut off means nothing to a reader.
        """
        if _CHANNEL not in known:
            begin = yield from text.comes(*_BEGINS)
            if begin is None or begin == _MESSAGE:
                return None if begin is None else known
            known += begin
        try:
            header = known + (yield from text.before(_MESSAGE))
            yield from text.comes(_MESSAGE)
        except Unfinished:
            yield from text.until((), lambda _: Said())
            return ""
        return header

    def _read_body(self, text: Scanner, header: str) -> Reading[None]:
        channel, recipient = _found(_NAMED, header), _found(_RECIPIENT, header)
        name = recipient.removeprefix(_FUNCTIONS)
        if recipient and self.takes_calls and (name != recipient or name in self._schemas):
            yield self._name(name)
            yield from self._read_arguments(text)
        elif recipient or channel == "analysis":
            yield from self._tell(text, _as_reasoning, "\n")
        else:
            yield from self._tell(text, as_content, "\n\n")

    def _tell(self, text: Scanner, say: Callable[[str], Said], between: str) -> Reading[None]:
        """Say a message, with what is `between` it and one of its kind before it."""
        is_first = True
        for said in _body(text, say):
            if said is not None and is_first:
                is_first = False
                if between in self._told:
                    yield say(between)
                self._told.add(between)
            yield said

    def _read_arguments(self, text: Scanner) -> Reading[None]:
        is_empty = True
        for said in _body(text, self._arguments):
            is_empty = is_empty and said is None
            yield said
        if is_empty:
            yield self._arguments("{}")


def _found(pattern: re.Pattern[str], header: str) -> str:
    found = pattern.search(header)
    return "" if found is None else found[1]


def _body(text: Scanner, say: Callable[[str], Said]) -> Iterator[Said | None]:
    """Say a message as it comes, up to its end, which is not read."""
    try:
        yield from text.said_before(_ENDS, say)
    except Unfinished:
        yield from text.until((), say)


def _as_reasoning(text: str) -> Said:
    return Said(reasoning=text)
