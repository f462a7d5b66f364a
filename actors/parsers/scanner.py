"""A text that comes piece by piece, read by code that goes straight on.

A reader of a format is a generator: it asks the scanner for the next thing, and where that has not all come, the
generator waits. It yields what pieces mean (`Said`), and None where it needs more text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from pageant.actors.parsers.base import Said, encodable

T = TypeVar("T")
Reading = Generator[Said | None, None, T]
Say = Callable[[str], Said]

_BLANKS = " \n\r\t"
_IN_JSON = re.compile(r'["\\{}\[\]]')
_IN_PYTHON = {  # by the quote that it is in
    "": re.compile(r"[\"'()\[\]{}]"),
    **{quote: re.compile(rf"[{quote}\\]") for quote in "\"'"},
}
_SCALAR_ENDS = re.compile(r"[\s,\]}]")


class Malformed(Exception):
    """The text is not what was to come, or has ended before it came."""


class Unfinished(Malformed):
    """The text has ended before what was to come had come, and was right so far."""


def as_content(text: str) -> Said:
    """Return a text as content."""
    return Said(content=text)


class Scanner:
    """Text that has come and was not read yet. It keeps what was read since the last `mark`."""

    def __init__(self) -> None:
        self._rest = ""
        self._ended = False
        self._read: list[str] = []
        self.is_cut = False

    def add(self, text: str, ended: bool, cut: bool = False) -> None:
        """Take more text, perhaps the last; with `cut`, more would have come if there had been room for it."""
        self._rest += text
        self._ended, self.is_cut = ended, cut

    def mark(self, text: str = "") -> None:
        """Begins to keep what is read, after a text that has been."""
        self._read = [text]

    def since_mark(self) -> str:
        """Return the text that was read since the last `mark`."""
        return "".join(self._read)

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        self._read.append(taken)
        return taken

    def _more(self) -> Reading[None]:
        """Waits for more text.

        Raises:
            Unfinished: there is none.
        """
        if self._ended:
            raise Unfinished
        had = len(self._rest)
        while len(self._rest) == had:
            yield None
            if self._ended:
                return

    # Texts between marks.

    def until(self, marks: tuple[str, ...], say: Say) -> Reading[str | None]:
        """Says what comes before one of the marks, but for the blanks at its end; returns them and the mark, or None if
        there is none to the end."""
        while True:
            places = [(place, mark) for mark in marks if (place := self._rest.find(mark)) >= 0]
            if places:
                place, mark = min(places)
                before = self._take(len(self._rest[:place].rstrip()))
                if before:
                    yield say(before)
                return self._take(place - len(before) + len(mark))
            text = self._rest
            ready = len(text) if self._ended else len(text[: len(text) - _begun(text, marks)].rstrip())
            if ready:
                yield say(self._take(ready))
            if self._ended:
                return None
            yield None

    def blanks(self) -> Reading[None]:
        """Passes over blanks."""
        while True:
            left = self._rest.lstrip(_BLANKS)
            self._take(len(self._rest) - len(left))
            if left or self._ended:
                return
            yield None

    def comes(self, *texts: str) -> Reading[str | None]:
        """Read one of the texts if it is next, and return it; else None."""
        while True:
            for text in texts:
                if self._rest.startswith(text):
                    self._take(len(text))
                    return text
            if self._ended or not any(text.startswith(self._rest) for text in texts):
                return None
            yield None

    def next_is(self, mark: str) -> Reading[bool]:
        """Tell whether `mark` is the next character that is no blank. Nothing is read."""
        while not self._ended and not self._rest.lstrip(_BLANKS):
            yield None
        return self._rest.lstrip(_BLANKS).startswith(mark)

    def looks_like(self, pattern: re.Pattern[str], begun: re.Pattern[str], length_max: int) -> Reading[bool]:
        """Tell whether the next text matches.

        The answer waits while the text may be the beginning of a match and is shorter than `length_max`
        characters.
        """
        while not self._ended and len(self._rest) < length_max and begun.fullmatch(self._rest):
            yield None
        return pattern.match(self._rest) is not None

    def before(self, *marks: str) -> Reading[str]:
        """The text up to one of the marks, which is not read."""
        while True:
            places = [place for mark in marks if (place := self._rest.find(mark)) >= 0]
            if places:
                return self._take(min(places))
            yield from self._more()

    def said_before(self, marks: tuple[str, ...], say: Say) -> Reading[None]:
        """Says the text up to one of the marks, which is not read, as it comes."""
        while True:
            places = [place for mark in marks if (place := self._rest.find(mark)) >= 0]
            ready = min(places) if places else len(self._rest) - _begun(self._rest, marks)
            if ready:
                yield say(self._take(ready))
            if places:
                return
            yield from self._more()

    def expect(self, text: str) -> Reading[None]:
        """Reads a text, after blanks."""
        yield from self.blanks()
        if (yield from self.comes(text)) is None:
            raise Unfinished if text.startswith(self._rest) else Malformed

    # JSON.

    def string(self) -> Reading[str]:
        """A string."""
        yield from self.blanks()
        written = "".join((yield from self._pieces()))
        if not written.startswith('"'):
            raise Malformed
        return _decoded(written)

    def value(self) -> Reading[str]:
        """A value, as it is written."""
        yield from self.blanks()
        return "".join((yield from self._pieces()))

    def said_value(self, say: Say) -> Reading[None]:
        """Says a value as it comes. A string is said as what it means, when it has come: it is the text of a value."""
        yield from self.blanks()
        if (yield from self.next_is('"')):
            yield say((yield from self.string()))
            return
        yield from self._pieces(say)

    def _pieces(self, say: Say | None = None) -> Reading[list[str]]:
        """The pieces that a value comes in."""
        pieces: list[str] = []
        depth, in_string, skip, place = 0, False, False, 0
        while True:
            if not self._rest:
                yield from self._more()
                continue
            end = None
            if not depth and not in_string and not pieces and self._rest[0] not in '"{[':
                end = yield from self._scalar()
                place = end
            while end is None:
                if skip:  # what follows a backslash
                    if place >= len(self._rest):
                        break
                    skip, place = False, place + 1
                found = _IN_JSON.search(self._rest, place)
                if found is None:
                    place = len(self._rest)
                    break
                place, what = found.end(), found[0]
                if in_string:
                    skip = what == "\\"
                    in_string = what != '"'
                elif what == '"':
                    in_string = True
                else:
                    depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(what, 0)
                if not depth and not in_string:
                    end = place
            piece = self._take(place if end is None else end)
            place = 0
            if piece:
                pieces.append(piece)
                if say is not None:
                    yield say(piece)
            if end is not None:
                return pieces
            yield from self._more()

    def _scalar(self) -> Reading[int]:
        """The length of a number, or of a word."""
        while True:
            found = _SCALAR_ENDS.search(self._rest)
            if found is not None:
                if not found.start():
                    raise Malformed
                return found.start()
            if self._ended:
                return len(self._rest)
            yield None

    # Python.

    def python_call(self) -> Reading[tuple[str, str]]:
        """`name(key=literal, ...)`: the name, which need not be one in Python, and the arguments as JSON."""
        name = (yield from self.before("(")).strip()
        pieces: list[str] = []
        quote, depth, place = "", 0, 0
        while True:
            found = _IN_PYTHON[quote].search(self._rest, place)
            if found is None:
                place = max(0, place - len(self._rest))  # 1 where what a backslash stands before is to come
                pieces.append(self._take(len(self._rest)))
                while not self._rest:
                    yield from self._more()
                continue
            place, what = found.end(), found[0]
            if what == "\\":
                place += 1
            elif what in "\"'":
                quote = "" if quote else what
            else:
                depth += (what in "([{") - (what in ")]}")
                if not depth:
                    return name, _python_arguments("call" + "".join([*pieces, self._take(place)]))


def _begun(text: str, marks: tuple[str, ...]) -> int:
    """The length of a text's end that may be the beginning of a mark."""
    for length in range(min(len(text), max(map(len, marks), default=1) - 1), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def _decoded(written: str) -> str:
    try:
        return encodable(str(json.loads(written)))
    except ValueError:
        raise Malformed from None


def _python_arguments(written: str) -> str:
    try:
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise Malformed
        arguments: dict[Any, Any] = {
            keyword.arg: ast.literal_eval(_plain(keyword.value)) for keyword in call.keywords if keyword.arg
        }
        return encodable(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise Malformed from None


class _Words(ast.NodeTransformer):
    """JSON's own words, where a model has mixed them in."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in _WORDS:
            return node
        return ast.copy_location(ast.Constant(_WORDS[node.id]), node)


_WORDS = {"true": True, "false": False, "null": None}


def _plain(node: ast.expr) -> ast.expr:
    plain: ast.expr = _Words().visit(node)
    return plain
