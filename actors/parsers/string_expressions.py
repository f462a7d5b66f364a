"""Regular expressions of a text, as rules of a grammar of the same text within a JSON string.

JSON writes some characters as escapes, which all begin with a backslash. A lexer that looks one byte ahead cannot tell
by it whether a terminal goes on. So a terminal that may match such characters becomes a rule, of terminals that match
runs of other characters, or one escape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["ESCAPES", "Unescapable", "rule_of", "set_of"]

ESCAPES = {character: json.dumps(character)[1:-1] for character in [*map(chr, range(32)), '"', "\\"]}
"""The characters that JSON escapes, each with its escape."""
_OTHERS = r'[^"\\\x00-\x1f]'
_DEPTH_MAX = 50
_FLAGS = frozenset("imsu")
_CONTROLS = dict(zip("aftnrv", "\a\f\t\n\r\v", strict=True))
_SET_OPERATORS = ("&&", "--", "~~", "||")
_ATOM = re.compile(
    r"""
      \\x\{(?P<x>[0-9a-fA-F]{1,6})\} | \\x(?P<x2>[0-9a-fA-F]{2})
    | \\u\{(?P<u>[0-9a-fA-F]{1,6})\} | \\u(?P<u4>[0-9a-fA-F]{4}) | \\U(?P<u8>[0-9a-fA-F]{8})
    | \\(?P<control>[aftnrv]) | (?P<kind>\\[dDwWsS]) | \\(?P<literal>[^a-zA-Z0-9])
    | (?P<set> \[\^?\]?(?:\\.|[^\]\\\[])*\] ) | (?P<dot> \.) | (?P<plain> [^\\\[()|*+?{] )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN = re.compile(r"\((?:\?:|\?P?<\w+>|(?!\?))")
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")


class Unescapable(ValueError):
    """A grammar has parts that cannot be escaped, or would be too large."""


@dataclass
class _Node:
    """A part of an expression: an atom, which is a character or a set, or a part that is made of others.

    Attributes:
        text: as the expression has it.
        escapes: of an atom, the escapes of the characters that it matches.
        others: of an atom, the set of the other characters that it matches; empty for none.
        options: of a part that is no atom, its alternatives, each a sequence of parts.
        quantifier: how often it comes.
    """

    text: str = ""
    escapes: tuple[str, ...] = ()
    others: str = ""
    options: list[list[_Node]] = field(default_factory=list)
    quantifier: str = ""

    @property
    def is_plain(self) -> bool:
        """Tell whether it matches no character that has an escape."""
        return not self.escapes and all(part.is_plain for option in self.options for part in option)


def rule_of(pattern: str, flags: str) -> tuple[str, bool]:
    """Return the expression of a rule, and whether it is a single terminal.

    Raises:
        Unescapable: the pattern has parts whose escape is not known.
    """
    if set(flags) - _FLAGS:
        raise Unescapable(f"the flags {flags!r:.20} of an expression")
    reader = _Reader(pattern, flags)
    whole = _Node(options=reader.options(0))
    if reader.at < len(pattern):
        raise Unescapable(f"{pattern[reader.at : reader.at + 20]!r} in an expression")
    if whole.is_plain:
        return f"/{pattern}/{flags}", True
    parts = whole.options[0]
    is_single = len(whole.options) == 1 == len(parts) and not parts[0].options and not parts[0].quantifier
    return _rule(whole, flags), is_single


def set_of(pattern: str, flags: str) -> str:
    """Return the terminal that matches one run or one escape, of an expression that is a set of characters, repeated or
    not.

    Raises:
        Unescapable: the expression is another one.
    """
    reader = _Reader(pattern, flags)
    options = reader.options(0)
    if reader.at < len(pattern) or len(options) != 1 or len(options[0]) != 1 or options[0][0].options:
        raise Unescapable(f"what is ignored, {pattern!r:.40}")
    return _terminal(options[0][0], flags, "+")


class _Reader:
    """Reads an expression. `at` is the place of what is not read yet."""

    def __init__(self, pattern: str, flags: str) -> None:
        self._pattern, self._flags = pattern, flags
        self.at = 0

    def options(self, depth: int) -> list[list[_Node]]:
        """Return the alternatives up to the end, or to a parenthesis that closes."""
        if depth > _DEPTH_MAX:
            raise Unescapable(f"an expression of more than {_DEPTH_MAX} levels")
        options: list[list[_Node]] = [[]]
        while self.at < len(self._pattern) and self._pattern[self.at] != ")":
            if self._pattern[self.at] == "|":
                self.at += 1
                options.append([])
            else:
                options[-1].append(self._part(depth))
        return options

    def _part(self, depth: int) -> _Node:
        start = self.at
        if found := _OPEN.match(self._pattern, self.at):
            self.at = found.end()
            node = _Node(options=self.options(depth + 1))
            if self._pattern[self.at : self.at + 1] != ")":
                raise Unescapable("a parenthesis that is not closed")
            self.at += 1
        elif found := _ATOM.match(self._pattern, self.at):
            self.at = found.end()
            node = _atom(found, self._flags)
        else:
            raise Unescapable(f"{self._pattern[self.at : self.at + 20]!r} in an expression")
        node.text = self._pattern[start : self.at]
        if found := _QUANTIFIER.match(self._pattern, self.at):
            node.quantifier, self.at = found[0], found.end()
        return node


def _atom(found: re.Match[str], flags: str) -> _Node:
    kind, text = str(found.lastgroup), found[0]
    if kind in ("x", "x2", "u", "u4", "u8"):
        code = int(found[kind], 16)
        return _one(chr(code) if code < 0x110000 else "", text)
    if kind == "control":
        return _one(_CONTROLS[found[kind]], text)
    if kind in ("literal", "plain"):
        return _one(found[kind], text)
    if kind == "dot":
        everything = "[^\\n]" if "s" not in flags else r"[\s\S]"
        return _set(everything, everything, flags)
    if kind == "kind":
        return _set(f"[{text}]", f"[{text}]", flags)
    if any(operator in text for operator in _SET_OPERATORS):
        raise Unescapable(f"the set {text!r:.40}")
    in_python = re.sub(r"\\[xu]\{([0-9a-fA-F]+)\}", lambda one: f"\\U{int(one[1], 16):08x}", text)
    return _set(text, in_python, flags)


def _one(character: str, text: str) -> _Node:
    if character in ESCAPES:
        return _Node(escapes=(ESCAPES[character],))
    return _Node(others=text)


def _set(written: str, in_python: str, flags: str) -> _Node:
    """Args: written: a set, as the grammar's backend reads it. in_python: the same, as Python does."""
    try:
        holds = re.compile(in_python, re.ASCII | re.IGNORECASE * ("i" in flags)).fullmatch
    except (re.error, OverflowError):
        raise Unescapable(f"the set {written!r:.40}") from None
    escapes = tuple(escape for character, escape in ESCAPES.items() if holds(character))
    return _Node(escapes=escapes, others=f"[{written}&&{_OTHERS}]" if escapes else written)


def _terminal(atom: _Node, flags: str, repeated: str = "") -> str:
    """Return the terminal of one escape, or of other characters that the atom matches."""
    escapes = "|".join(escape.replace("\\", "\\\\") for escape in atom.escapes)
    options = [f"{atom.others}{repeated}"] * bool(atom.others)
    options += [f"(?-i:{escapes})" if "i" in flags else escapes] * bool(escapes)
    return f"/{'|'.join(options)}/{flags}"


def _rule(node: _Node, flags: str) -> str:
    """Return the expression of a rule for a part."""
    if not node.options:
        if node.quantifier in ("*", "+", "{0,}", "{1,}"):
            return f"({_terminal(node, flags, '+')}){node.quantifier}"
        return f"{_terminal(node, flags)}{node.quantifier}"
    options = [" ".join(_sequence(option, flags)) or '""' for option in node.options]
    return f"({' | '.join(options)}){node.quantifier}"


def _sequence(parts: list[_Node], flags: str) -> Iterator[str]:
    """Yield the expressions of parts in a row: plain ones next to each other are one terminal."""
    plain = ""
    for part in parts:
        if part.is_plain:
            plain += part.text + part.quantifier
            continue
        if plain:
            yield f"/{plain}/{flags}"
        plain = ""
        yield _rule(part, flags)
    if plain:
        yield f"/{plain}/{flags}"
