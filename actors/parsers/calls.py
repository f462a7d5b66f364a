"""Calls of tools in what a model writes: a reader for each format.

What turns out not to be a call is content after all, as long as nothing of a call has been said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pageant.actors.parsers.base import CallPiece, Said
from pageant.actors.parsers.scanner import (
    Malformed,
    Reading,
    Scanner,
    Unfinished,
    as_content,
)

NAMES = ("name",)
ARGUMENTS = ("arguments", "parameters")
BESIDE = ("id", "type", "function", "index")  # of what a call is known by
Schemas = Mapping[str, Mapping[str, Any] | None]
NO_SCHEMAS: Schemas = {}
_PYTHON_LIST = re.compile(r"\[\s*[\w.:-]+\(")
_PYTHON_LIST_BEGUN = re.compile(r"(\[\s*[\w.:-]*)?")
NAME_LENGTH_MAX = 256


class Calls:
    """The calls of one choice, numbered as they come. A subclass reads one format in `read`.

    Args:
        schemas: the schemas of the tools' arguments, by the tools' names.
    """

    has_marks = True  # that say what a call is; else an answer in JSON may look like one
    reads_thoughts = False
    """Whether it reads all of an answer: what the model thinks, and what it says, too."""
    takes_calls = True
    """Whether the request has tools. Readers of all of an answer read those that have none, too."""

    def __init__(self, new_id: Callable[[], str], schemas: Schemas = NO_SCHEMAS) -> None:
        self._new_id, self._schemas = new_id, schemas
        self._count = 0
        self._is_told = False  # whether the name of the current one has been said

    def begin(self, prompt: str | None) -> None:
        """Take the prompt, before the first piece; None where it has no text."""

    def read(self, text: Scanner) -> Reading[None]:
        """The whole text, from where it may have calls."""
        raise NotImplementedError

    def _name(self, name: str) -> Said:
        """A call begins. Where nothing else says so, its name does: it is that of a tool.

        Raises:
            Malformed: it is not.
        """
        if not self.has_marks and self._schemas and name not in self._schemas:
            raise Malformed
        self._is_told = True
        self._count += 1
        return Said(calls=(CallPiece(self._count - 1, "", self._new_id(), name),))

    def _arguments(self, text: str) -> Said:
        """The next of its arguments."""
        return Said(calls=(CallPiece(self._count - 1, text),))

    def _attempt(self, text: Scanner, call: Reading[None], mark: str = "") -> Reading[bool]:
        """Reads a call, or several. Returns whether it was one; else it has been said as content, unless the text was
        cut off within a call: its markup means nothing to a reader."""
        text.mark(mark)
        self._is_told = False
        try:
            yield from call
        except Malformed as error:
            is_call = isinstance(error, Unfinished) and text.is_cut and self.has_marks
            if not (self._is_told or is_call):
                yield as_content(text.since_mark())
            return False
        return True

    def _object(self, text: Scanner) -> Reading[None]:
        """`{"name": ..., "arguments": {...}}`, in any order."""
        name = arguments = None
        yield from text.expect("{")
        while True:
            key = yield from text.string()
            yield from text.expect(":")
            if key in NAMES and name is None:
                name = yield from text.string()
                yield self._name(name)
                if arguments is not None:
                    yield self._arguments(arguments)
            elif key in ARGUMENTS and arguments is None:
                if name is None:
                    arguments = yield from text.value()
                else:
                    arguments = ""
                    yield from text.said_value(self._arguments)
            elif key in BESIDE or name is not None:
                yield from text.value()
            else:
                raise Malformed
            yield from text.blanks()
            if (yield from text.comes("}")) is not None:
                break
            yield from text.expect(",")
        if name is None:
            raise Malformed
        if arguments is None:
            yield self._arguments("{}")

    def _list(self, text: Scanner) -> Reading[None]:
        """`[{...}, ...]`"""
        yield from text.expect("[")
        while True:
            yield from self._object(text)
            yield from text.blanks()
            if (yield from text.comes("]")) is not None:
                return
            yield from text.expect(",")


class Hermes(Calls):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere; Qwen's too."""

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        while (mark := (yield from text.until(("<tool_call>",), as_content))) is not None:
            if (yield from self._attempt(text, self._object(text), mark)):
                yield from text.blanks()
                yield from text.comes("</tool_call>")
                yield from text.blanks()


class Llama(Calls):
    """`{"name": ..., "parameters": {...}}`, several with `;` between; all there is, perhaps after `<|python_tag|>`."""

    has_marks = False

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        yield from text.blanks()
        tag = yield from text.comes("<|python_tag|>")
        while (yield from text.next_is("{")):
            if not (yield from self._attempt(text, self._object(text), tag or "")):
                break
            yield from text.blanks()
            yield from text.comes(";")
            yield from text.blanks()
            tag = None
        yield from text.until((), as_content)


class Mistral(Calls):
    """`[TOOL_CALLS]`, then a list as in JSON, or `name{...}` with marks for an id and for the arguments between."""

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        while (mark := (yield from text.until(("[TOOL_CALLS]",), as_content))) is not None:
            yield from self._attempt(text, self._called(text), mark)
            yield from text.blanks()

    def _called(self, text: Scanner) -> Reading[None]:
        yield from text.blanks()
        if (yield from text.next_is("[")):
            yield from self._list(text)
            return
        name = (yield from text.before("{", "[CALL_ID]", "[ARGS]")).strip()
        if not name or len(name) > NAME_LENGTH_MAX:
            raise Malformed
        yield from text.before("{")
        yield self._name(name)
        yield from text.said_value(self._arguments)


class Pythonic(Calls):
    """`[f(x=1), g(y="z")]`: all there is. A call is said when it has come."""

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        yield from text.blanks()
        yield from text.comes("<|python_start|>", "<|python_tag|>")
        if (yield from text.looks_like(_PYTHON_LIST, _PYTHON_LIST_BEGUN, NAME_LENGTH_MAX)):
            yield from self._attempt(text, self._called(text))
            yield from text.blanks()
            yield from text.comes("<|python_end|>")
        yield from text.until((), as_content)

    def _called(self, text: Scanner) -> Reading[None]:
        yield from text.expect("[")
        while True:
            name, arguments = yield from text.python_call()
            yield self._name(name)
            yield self._arguments(arguments)
            yield from text.blanks()
            if (yield from text.comes("]")) is not None:
                return
            yield from text.expect(",")


class DeepSeek(Calls):
    """Calls between marks of their own: `name<sep>{...}`, or of a kind, with the arguments fenced."""

    BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    CALL, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        while (mark := (yield from text.until((self.BEGIN, self.CALL), as_content))) is not None:
            if mark.endswith(self.CALL):
                yield from self._attempt(text, self._called(text), mark)
            yield from text.blanks()
            while (yield from text.comes(self.CALL_END, self.END)) is not None:
                yield from text.blanks()

    def _called(self, text: Scanner) -> Reading[None]:
        name = (yield from text.before(self.SEP)).strip()
        yield from text.expect(self.SEP)
        fenced = name == "function"
        if fenced:
            name = (yield from text.before("```")).strip()
            yield from text.expect("```json")
        yield self._name(name)
        yield from text.said_value(self._arguments)
        if fenced:
            yield from text.expect("```")


class JsonList(Calls):
    """`[{"name": ..., "parameters": {...}}, ...]`: all there is. For models that have no format of their own."""

    has_marks = False

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        if (yield from text.next_is("[")):
            yield from self._attempt(text, self._list(text))
        yield from text.until((), as_content)
