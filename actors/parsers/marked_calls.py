"""Readers of formats that put calls between marks of their own: JSON as Hermes' calls, or Python's."""

from __future__ import annotations

from pageant.actors.parsers.calls import Calls, Pythonic
from pageant.actors.parsers.scanner import Reading, Scanner, as_content


class Marked(Calls):
    """A mark of the format's own, then an object as in Hermes' format or a list of such, anywhere."""

    MARKS: tuple[str, ...]
    ENDS: tuple[str, ...] = ()

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        while (mark := (yield from text.until(self.MARKS, as_content))) is not None:
            if (yield from self._attempt(text, self._called(text), mark)):
                yield from text.blanks()
                if self.ENDS:
                    yield from text.comes(*self.ENDS)
                yield from text.blanks()

    def _called(self, text: Scanner) -> Reading[None]:
        yield from text.blanks()
        yield from self._list(text) if (yield from text.next_is("[")) else self._object(text)


class Granite(Marked):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`, of Granite 3; without the bars in Granite 3.0."""

    MARKS = ("<|tool_call|>", "<tool_call>")


class Granite20b(Marked):
    """`<function_call> {"name": ..., "arguments": {...}}`, of Granite 20B's functions."""

    MARKS = ("<function_call>",)


class Jamba(Marked):
    """`<tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>`."""

    MARKS = ("<tool_calls>",)
    ENDS = ("</tool_calls>",)


class Longcat(Marked):
    """`<longcat_tool_call>{"name": ..., "arguments": {...}}</longcat_tool_call>`."""

    MARKS = ("<longcat_tool_call>",)
    ENDS = ("</longcat_tool_call>",)


class Internlm(Marked):
    """`<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`, of InternLM 2."""

    MARKS = ("<|action_start|><|plugin|>",)
    ENDS = ("<|action_end|>",)


class Phi4Mini(Marked):
    """`functools[{"name": ..., "arguments": {...}}]`."""

    MARKS = ("functools",)

    def _called(self, text: Scanner) -> Reading[None]:
        yield from self._list(text)


class Lfm2(Pythonic):
    """`<|tool_call_start|>[f(x=1), g(y="z")]<|tool_call_end|>`, anywhere."""

    has_marks = True

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        while (mark := (yield from text.until(("<|tool_call_start|>",), as_content))) is not None:
            if (yield from self._attempt(text, self._called(text), mark)):
                yield from text.blanks()
                yield from text.comes("<|tool_call_end|>")
                yield from text.blanks()


class Xlam(Calls):
    """`[{"name": ..., "arguments": {...}}, ...]`: all there is, perhaps fenced as code or between other marks."""

    has_marks = False

    def read(self, text: Scanner) -> Reading[None]:
        """See `Calls`."""
        yield from text.blanks()
        mark = (yield from text.comes("```", "[TOOL_CALLS]", "<tool_call>")) or ""
        if mark == "```":
            mark += (yield from text.comes("json")) or ""
        is_call = mark or (yield from text.next_is("["))
        if is_call and (yield from self._attempt(text, self._called(text), mark)):
            yield from text.blanks()
            yield from text.comes("```", "</tool_call>")
        yield from text.until((), as_content)

    def _called(self, text: Scanner) -> Reading[None]:
        yield from text.blanks()
        yield from self._list(text) if (yield from text.next_is("[")) else self._object(text)
