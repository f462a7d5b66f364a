"""Lark grammars of a text, as grammars of the same text between the quotes of a JSON string."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pageant.actors.parsers.string_expressions import ESCAPES, Unescapable, rule_of, set_of

__all__ = ["Unescapable", "escaped_grammar"]

SIZE_MAX = 100_000
"""Characters of a grammar before and after: a part of what a structured output takes."""
NESTED_MAX = 100
"""Terminals that name one another in a chain."""
_COMMON = {
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
    "ESCAPED_STRING": r'/"([^"\\\n]|\\[^\n])*"/',
    "SH_COMMENT": r"/#[^\n]*/",
    "CPP_COMMENT": r"/\/\/[^\n]*/",
    "SQL_COMMENT": r"/--[^\n]*/",
    "C_COMMENT": r"/\/\*([^*]|\*+[^*\/])*\*+\//",
}
"""Terminals of Lark's `common` that match characters with an escape."""
_TOKEN = re.compile(
    r"""
      (?P<comment> (?://|\#)[^\n]* )
    | (?P<range> "(?:\\.|[^"\\\n])+" [ \t]* \.\. [ \t]* "(?:\\.|[^"\\\n])+" )
    | (?P<string> "(?:\\.|[^"\\\n])*" i? )
    | (?P<regex> /(?:\\.|[^/\\\n])+/ [a-z]* )
    | (?P<head> ^ [ \t]* [!?]* \w+ (?:\.-?\d+)? [ \t]* :(?!:) )
    | (?P<imports> %import \s+ common \s* (?:\. \s* \w+ (?:[ \t]*->[ \t]*\w+)? | \( [\w\s,]* \)) )
    | (?P<ignore> %ignore\b )
    | (?P<alias> ->\s*\w+ )
    | (?P<name> [^\W\d]\w* )
    | (?P<other> \s+ | \d+ | [()\[\]|*+?&.,{}:!-] | ~(?=\s*\d) )
    """,
    re.VERBOSE | re.MULTILINE,
)
_ATTRIBUTES = re.compile(r"^[ \t]*[!?]*\w+(\.-?\d+)?\[", re.MULTILINE)
_STRING = r'"(?:\\.|[^"\\\n])+"'


class _Token(NamedTuple):
    kind: str
    text: str


@dataclass
class _Definition:
    """A rule or a terminal: what stands before its colon, and after."""

    name: str
    tokens: list[_Token]

    @property
    def is_terminal(self) -> bool:
        return self.name.lstrip("_")[:1].isupper()

    def leaves(self) -> list[_Token]:
        """Return its tokens, without blanks."""
        return [token for token in self.tokens if token.text.strip()]


@lru_cache(maxsize=16)
def escaped_grammar(grammar: str) -> str:
    """Return the grammar of a text's JSON string, without the quotes around it.

    Args:
        grammar: in Lark's form, of the text itself.

    Raises:
        Unescapable: it has parts whose escape is not known: directives, attributes, complements, flags within an
            expression; or it ignores text between terminals, and has one that must become several.
    """
    if len(grammar) > SIZE_MAX or _ATTRIBUTES.search(grammar):
        raise Unescapable("attributes of a rule, or too many characters")
    definitions, ignored, kept = _read(list(_tokens(grammar)))
    written = _Written(definitions)
    lines = [*kept, *map(written.line, _without_ignored(definitions, ignored))]
    if ignored and written.has_split:
        raise Unescapable("terminals of several parts, where text between terminals is ignored")
    lines += [f"%ignore {written.ignored(name)}" for name in ignored]
    found = "\n".join(lines) + "\n"
    if len(found) > SIZE_MAX:
        raise Unescapable(f"more than {SIZE_MAX} characters")
    return found


def _tokens(grammar: str) -> Iterator[_Token]:
    at = 0
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None:
            raise Unescapable(f"{grammar[at : at + 20]!r}")
        yield _Token(str(found.lastgroup), found[0])
        at = found.end()


def _read(tokens: list[_Token]) -> tuple[list[_Definition], list[str], list[str]]:
    """Return the definitions of a grammar, the names of those that are ignored, and the lines that stay."""
    definitions: list[_Definition] = []
    ignored: list[str] = []
    kept: list[str] = []
    for kind, text in tokens:
        if kind == "head":
            definitions.append(_Definition(text.strip().rstrip(":").strip(), []))
        elif kind == "ignore":
            ignored.append(f"IGNORED_{len(ignored)}")
            definitions.append(_Definition(ignored[-1], []))
        elif kind == "imports":
            for name, alias in _imports(text):
                if name in _COMMON:
                    definitions.append(_Definition(alias, [_Token("regex", _COMMON[name])]))
                else:
                    kept.append(f"%import common.{name}" + (f" -> {alias}" if alias != name else ""))
        elif definitions and kind != "comment":
            definitions[-1].tokens.append(_Token(kind, text))
        elif text.strip() and kind != "comment":
            raise Unescapable(f"{text!r:.20} before the first rule")
    return definitions, ignored, kept


def _without_ignored(definitions: list[_Definition], ignored: list[str]) -> list[_Definition]:
    """Return the definitions without those that stand for what is ignored alone."""
    used: dict[bool, set[str]] = {True: set(), False: set()}
    for one in definitions:
        used[one.name in ignored].update(token.text for token in one.tokens if token.kind == "name")
    alone = used[True] - used[False]
    return [one for one in definitions if one.name not in ignored and _plain_name(one.name) not in alone]


def _imports(text: str) -> list[tuple[str, str]]:
    """Return the names of terminals that are imported, and those that they get."""
    names = text.partition("common")[2].strip()
    if names.startswith("("):
        return [(name, name) for name in re.findall(r"\w+", names)]
    name, _, alias = names.removeprefix(".").partition("->")
    return [(name.strip(), alias.strip() or name.strip())]


class _Written:
    """Writes definitions, escaped. Terminals that must become several are written as rules of other names.

    `has_split` tells whether there was one.
    """

    def __init__(self, definitions: list[_Definition]) -> None:
        self._definitions = {_plain_name(one.name): one for one in definitions}
        self._names: dict[str, str] = {}
        self._staying: dict[str, bool] = {}
        for definition in definitions:
            if definition.is_terminal and not self._stays(definition, ()):
                self._rename(_plain_name(definition.name))
        self.has_split = False

    def _rename(self, name: str) -> None:
        new = f"text_{name.lower()}"
        while new in self._definitions or new in self._names.values():
            new += "_"
        self._names[name] = new

    def _stays(self, definition: _Definition, within: tuple[str, ...]) -> bool:
        """Tell whether a terminal can stay one; each is looked at once, however often others name it."""
        name = _plain_name(definition.name)
        if name not in self._staying:
            self._staying[name] = self._can_stay(definition, within)
        return self._staying[name]

    def _can_stay(self, definition: _Definition, within: tuple[str, ...]) -> bool:
        """Tell whether a terminal can stay one: nothing in it has an escape, or it is all of it."""
        leaves = definition.leaves()
        if len(leaves) == 1 and leaves[0].kind in ("string", "regex", "range"):
            return _escaped(leaves[0])[1]
        for token in leaves:
            if token.kind == "name" and (inner := self._definitions.get(token.text)) is not None:
                if token.text in within:
                    raise Unescapable(f"{token.text!r:.40}, which is defined by itself")
                if len(within) >= NESTED_MAX:
                    raise Unescapable(f"terminals within one another, more than {NESTED_MAX} deep")
                if not self._stays(inner, (*within, token.text)) or not _is_plain(inner):
                    return False
            elif token.kind in ("string", "regex", "range") and _escaped(token)[0] != token.text:
                return False
        return True

    def line(self, definition: _Definition) -> str:
        """Return the line of a definition."""
        name = _plain_name(definition.name)
        becomes_rule = name in self._names
        if becomes_rule and any(token.text == "&" for token in definition.tokens):
            raise Unescapable("an intersection of terminals")
        head = self._names.get(name, definition.name)
        self.has_split |= becomes_rule
        return f"{head}: {self._body(definition)}"

    def _body(self, definition: _Definition) -> str:
        parts = []
        for token in definition.tokens:
            if token.kind == "name":
                parts.append(self._names.get(token.text, token.text))
            elif token.kind in ("string", "regex", "range"):
                text, is_single = _escaped(token)
                self.has_split |= not is_single
                parts.append(text)
            else:
                parts.append(token.text)
        return "".join(parts).strip()

    def ignored(self, name: str) -> str:
        """Return the terminal that is ignored under a name of `_read`."""
        leaves = self._definitions[name].leaves()
        while len(leaves) == 1 and leaves[0].kind == "name" and leaves[0].text in self._definitions:
            leaves = self._definitions[leaves[0].text].leaves()
        if len(leaves) != 1:
            raise Unescapable("what is ignored")
        text, is_single = _escaped(leaves[0])
        if is_single:
            return text
        pattern, _, flags = leaves[0].text[1:].rpartition("/")
        return set_of(pattern, flags)


def _plain_name(head: str) -> str:
    return re.sub(r"^[!?]*|\.-?\d+$", "", head)


def _is_plain(definition: _Definition) -> bool:
    """Tell whether nothing that a definition itself has must be escaped."""
    return all(
        _escaped(token)[0] == token.text
        for token in definition.tokens
        if token.kind in ("string", "regex", "range")
    )


def _escaped(token: _Token) -> tuple[str, bool]:
    """Return a token that matches text, escaped, and whether it is a single terminal still."""
    if token.kind == "string":
        return _string(token.text)
    if token.kind == "regex":
        pattern, _, flags = token.text[1:].rpartition("/")
        return rule_of(pattern, flags)
    if token.kind == "range":
        first, last = map(_character, re.findall(_STRING, token.text))
        if not any(first <= character <= last for character in ESCAPES):
            return token.text, True
        return rule_of(f"[\\u{{{ord(first):x}}}-\\u{{{ord(last):x}}}]", "")
    return token.text, True


def _value(literal: str) -> str:
    """Return the text that a literal of a grammar stands for."""
    try:
        return str(json.loads(re.sub(r"\\(\\|x)", lambda one: r"\u00" if one[1] == "x" else r"\\", literal)))
    except ValueError:
        raise Unescapable(f"the string {literal!r:.40}") from None


def _character(literal: str) -> str:
    value = _value(literal)
    if len(value) != 1:
        raise Unescapable(f"{literal!r:.40} as the end of a range")
    return value


def _string(literal: str) -> tuple[str, bool]:
    flag = "i" if literal.endswith("i") else ""
    parts = [part for part in re.split(r'([\x00-\x1f"\\])', _value(literal.removesuffix("i"))) if part]
    if not any(part in ESCAPES for part in parts):
        return literal, True
    written = [
        json.dumps(ESCAPES.get(part, part), ensure_ascii=False) + flag * (part not in ESCAPES)
        for part in parts
    ]
    return (f"({' '.join(written)})", False) if len(written) > 1 else (written[0], True)
