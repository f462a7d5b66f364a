"""Formats in which models write calls and reasoning, and their grammars."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pageant.actors.parsers import arguments, calls
from pageant.actors.parsers.arguments import HeldText, Tree, const, text_as_json
from pageant.protocol.errors import BadRequest

__all__ = ["ANY_OBJECT", "Held", "ToolFormat"]

ANY_OBJECT: dict[str, Any] = {"type": "object"}
Held = dict[str, Any] | HeldText
"""What a call's arguments are held to: a schema, or the grammar of their one text."""
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A format of calls: `head`, then each call with `separator` between, then `tail`.

    Attributes:
        begin, end: around a call's arguments; `NAME` is replaced by its name.
        trigger: a text that occurs wherever calls are, perhaps in the middle of other text.
        opening: without a trigger, calls are the whole text, which begins with this character.
        special: its marks may be special tokens, which then must have a text.
        single: a message has one call, which ends it.
        answer_begin: stands before an answer that is no call.
        id_length: the length of the ids by which the model knows calls; None is any.
        arguments: converts a schema to the tree of its arguments.
        text: converts a held text to the tree of the arguments that it alone is.
        found_by: texts that identify this format if a chat template has all of them.
    """

    reader: type[calls.Calls]
    begin: str
    end: str
    found_by: tuple[str, ...]
    trigger: str = ""
    opening: str = ""
    separator: str = ""
    head: str = ""
    tail: str = ""
    special: bool = False
    single: bool = False
    answer_begin: str = ""
    id_length: int | None = None
    arguments: Callable[[dict[str, Any]], Tree] = arguments.as_json
    text: Callable[[HeldText], Tree] = text_as_json

    def calls(self, tools: Mapping[str, Held | None], *, one: bool, optional: bool = False) -> dict[str, Any]:
        """Calls and nothing else, as a tree of structural tags.

        Args:
            tools: by name, what their arguments are held to; None is any object.
            one: there is a single call.

        Raises:
            BadRequest: one of them is no schema.
        """
        inner = {
            "type": "tags_with_separator",
            "tags": [self._tag(name, schema) for name, schema in tools.items()],
            "separator": self.separator,
            "at_least_one": not optional,
            "stop_after_first": one or self.single,
        }
        if not (self.head or self.tail):
            return inner
        return {"type": "sequence", "elements": [const(self.head), inner, const(self.tail)]}

    def json_or_calls(self, answer: Any, tools: Mapping[str, Held | None], *, one: bool) -> dict[str, Any]:
        """JSON by a schema, or calls; `calls` says what it raises.

        Where calls are objects with nothing before them, there is one, and a schema of either: the grammar's lexer
        would take an answer's first letters for those of a call's text, and lead every answer into a call.
        """
        if self.opening == "{" and not self.head and (either := _one_of(answer, tools)) is not None:
            return arguments.as_json(either)
        return {
            "type": "or",
            "elements": [self.answer(arguments.as_json(answer)), self.calls(tools, one=one)],
        }

    def answer(self, tree: Tree) -> Tree:
        """Return the tree of an answer that is no call, whose text is held to a tree."""
        return arguments.sequence(const(self.answer_begin), tree) if self.answer_begin else tree

    def is_found_in(self, templates: str) -> bool:
        """Tell whether a model with these chat templates has this format."""
        return bool(self.found_by) and all(map(templates.__contains__, self.found_by))

    def text_with_calls(self, tools: Mapping[str, Held | None], *, one: bool) -> dict[str, Any]:
        """Any text, with calls where it has the trigger; or either."""
        if self.answer_begin:
            any_answer = self.answer({"type": "any_text"})
            return {"type": "or", "elements": [any_answer, self.calls(tools, one=one)]}
        if not self.trigger:
            other = {"type": "regex", "pattern": rf"([^\s\{self.opening}](.|\n)*)?"}
            return {"type": "or", "elements": [self.calls(tools, one=one), other]}
        tags = [self._tag(name, schema) for name, schema in tools.items()]
        if self.head or self.tail:
            sequence = self.calls(tools, one=one)
            tags = [
                {"begin": self.head, "content": {**sequence, "elements": sequence["elements"][1:]}, "end": ""}
            ]
        return {
            "type": "triggered_tags",
            "triggers": [self.trigger],
            "tags": tags,
            "stop_after_first": one,
        }

    def _tag(self, name: str, held: Held | None) -> dict[str, Any]:
        try:
            if isinstance(held, HeldText):
                content = self.text(held)
            else:
                content = self.arguments(ANY_OBJECT if held is None else held)
        except (AttributeError, TypeError, ValueError):  # such as `properties` that are no object
            raise BadRequest(f"tools: the parameters of {name} are no JSON schema", "tools") from None
        begin = self.begin.replace("NAME", name)
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}


def _one_of(answer: Any, tools: Mapping[str, Held | None]) -> dict[str, Any] | None:
    """A schema of an answer, or of a call as `llama3_json` has it; None where the answer's refers to itself as a whole.
    What a tool's own schema defines stays with the answer: arguments of such a tool are any; and so is a held text."""
    if not isinstance(answer, dict) or '"$ref":"#"' in json.dumps(answer, separators=(",", ":")):
        return None
    inner = {key: value for key, value in answer.items() if key not in _DEFINITIONS}
    options = [inner]
    for name, schema in tools.items():
        free = not isinstance(schema, dict) or any(key in schema for key in _DEFINITIONS)
        properties = {"name": {"const": name}, "parameters": ANY_OBJECT if free else schema}
        options.append(
            {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        )
    return {**{key: answer[key] for key in _DEFINITIONS if key in answer}, "anyOf": options}
