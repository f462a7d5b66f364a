"""Calls whose arguments are written one by one between marks, as in XML but with nothing escaped.

By the tool's schema a value is a text, said as it comes, or JSON, said when it has come.
"""

from __future__ import annotations

import json
from typing import Any

from pageant.actors.parsers.arguments import PARAMETER, PARAMETER_END, is_text, resolved, xml_value
from pageant.actors.parsers.base import Said
from pageant.actors.parsers.calls import NAME_LENGTH_MAX, Calls
from pageant.actors.parsers.scanner import Malformed, Reading, Scanner, as_content

__all__ = ["Glm", "MiniMax", "QwenCoder", "XmlCalls"]


class XmlCalls(Calls):
    """Reader of such calls. A subclass says the marks, and reads what is before the arguments in `called`."""

    begins: tuple[str, ...]
    """Marks of which one is before each call."""
    after: tuple[str, ...]
    """Marks that may be between and behind calls."""
    ends: tuple[str, ...]
    """Marks of which one is behind the arguments of a call."""
    key_begin: str
    key_end: str
    value_begin: str = ""
    """A mark between a key and its value."""
    value_ends: tuple[str, ...]
    """Marks of which one is behind a value, the longest first."""
    value_leads: tuple[str, ...] = ()
    """Blanks before a value that are none of it."""

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        while (mark := (yield from text.until(self.begins, as_content))) is not None:
            if (yield from self._attempt(text, self._called(text, mark), mark)):
                yield from text.blanks()
                while (yield from text.comes(*self.after)) is not None:
                    yield from text.blanks()

    def name(self, text: Scanner, mark: str) -> Reading[str]:
        """Return the name of a call whose first mark was read."""
        raise NotImplementedError

    def _called(self, text: Scanner, mark: str) -> Reading[None]:
        name = (yield from self.name(text, mark)).strip()
        if not name or len(name) > NAME_LENGTH_MAX:
            raise Malformed
        yield self._name(name)
        root = self._schemas.get(name) or {}
        schema = resolved(root, root)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        before = "{"
        while True:
            yield from text.blanks()
            if (yield from text.comes(*self.ends)) is not None:
                break
            yield from text.expect(self.key_begin)
            key = (yield from text.before(self.key_end)).strip()
            yield from text.expect(self.key_end)
            if self.value_begin:
                yield from text.blanks()
                yield from text.expect(self.value_begin)
            if self.value_leads:
                yield from text.comes(*self.value_leads)
            yield self._arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            of_key = properties.get(key) if isinstance(properties, dict) else None
            yield from self._value(text, of_key, root)
            before = ", "
        yield self._arguments("{}" if before == "{" else "}")

    def _value(self, text: Scanner, schema: Any, root: Any) -> Reading[None]:
        if is_text(schema):
            yield self._arguments('"')
            yield from text.said_before(self.value_ends, self._quoted)
            yield self._arguments('"')
        else:
            yield self._arguments(xml_value((yield from text.before(*self.value_ends)), schema, root))
        yield from text.comes(*self.value_ends)

    def _quoted(self, text: str) -> Said:
        return self._arguments(json.dumps(text, ensure_ascii=False)[1:-1])


class QwenCoder(XmlCalls):
    """`<tool_call><function=name><parameter=key>value</parameter> ... </function></tool_call>`, anywhere."""

    begins, after, ends = ("<tool_call>", "<function="), ("</tool_call>",), ("</function>", "</tool_call>")
    key_begin, key_end = PARAMETER, ">"
    value_ends, value_leads = (f"\n{PARAMETER_END}", PARAMETER_END), ("\n",)

    def name(self, text: Scanner, mark: str) -> Reading[str]:
        """See `XmlCalls`."""
        if not mark.endswith("<function="):  # which some leave out
            yield from text.expect("<function=")
        name = yield from text.before(">")
        yield from text.expect(">")
        return name


class Glm(XmlCalls):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value> ... </tool_call>`, anywhere; with or without
    lines between them. GLM-4.5's and GLM-4.7's."""

    begins, after, ends = ("<tool_call>",), (), ("</tool_call>",)
    key_begin, key_end, value_begin = "<arg_key>", "</arg_key>", "<arg_value>"
    value_ends = ("</arg_value>",)

    def name(self, text: Scanner, mark: str) -> Reading[str]:
        """See `XmlCalls`."""
        name = (yield from text.before(self.key_begin, *self.ends)).strip()
        if any(mark in name for mark in "<{\n"):
            raise Malformed
        return name


class MiniMax(XmlCalls):
    """`<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter> ... </invoke> ...
    </minimax:tool_call>`, anywhere."""

    begins, after = ("<minimax:tool_call>", '<invoke name="'), ("</minimax:tool_call>",)
    ends = ("</invoke>",)
    key_begin, key_end = '<parameter name="', '">'
    value_ends, value_leads = (f"\n{PARAMETER_END}", PARAMETER_END), ("\n",)

    def name(self, text: Scanner, mark: str) -> Reading[str]:
        """See `XmlCalls`."""
        if not mark.endswith('<invoke name="'):
            yield from text.expect('<invoke name="')
        name = yield from text.before('">')
        yield from text.expect('">')
        return name
