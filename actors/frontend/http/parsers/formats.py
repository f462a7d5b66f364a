"""Which formats a model writes its calls and its thoughts in, and what those look like as grammars."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pageant.actors.frontend.http.parsers import arguments, calls
from pageant.actors.frontend.http.parsers.arguments import const
from pageant.actors.frontend.http.parsers.names import REASONING_PARSERS, TOOL_PARSERS, Parsers, chosen
from pageant.actors.frontend.http.parsers.reading import Marks
from pageant.protocol.errors import BadRequest

AUTO, NONE = "auto", "none"
ANY_OBJECT: dict[str, Any] = {"type": "object"}
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How calls are written: `head`, then each call with `separator` between, then `tail`.

    Attributes:
        begin, end: around a call's arguments; `NAME` stands for its name.
        trigger: what a text has wherever calls are, perhaps in its midst.
        opening: without a trigger, calls are all of a text, which begins with this character.
        special: whether its marks may be special tokens, which then must have a text.
        id_length: of the ids that the model knows calls by; None is any.
        arguments: what those of a schema look like.
        found_by: each of these in a chat template says that it is this format.
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
    id_length: int | None = None
    arguments: Callable[[dict[str, Any]], arguments.Tree] = arguments.as_json

    def calls(
        self, tools: Mapping[str, dict[str, Any] | None], *, one: bool, optional: bool = False
    ) -> dict[str, Any]:
        """Calls and nothing else, as a tree of structural tags.

        Args:
            tools: by name, the schemas of their arguments.
            one: there is a single call.

        Raises:
            BadRequest: one of them is no schema.
        """
        inner = {
            "type": "tags_with_separator",
            "tags": [self._tag(name, schema) for name, schema in tools.items()],
            "separator": self.separator,
            "at_least_one": not optional,
            "stop_after_first": one,
        }
        if not (self.head or self.tail):
            return inner
        return {"type": "sequence", "elements": [const(self.head), inner, const(self.tail)]}

    def json_or_calls(
        self, answer: Any, tools: Mapping[str, dict[str, Any] | None], *, one: bool
    ) -> dict[str, Any]:
        """JSON by a schema, or calls; `calls` says what it raises.

        Where calls are objects with nothing before them, there is one, and a schema of either: the grammar's lexer
        would take an answer's first letters for those of a call's text, and lead every answer into a call.
        """
        if self.opening == "{" and not self.head and (either := _one_of(answer, tools)) is not None:
            return arguments.as_json(either)
        return {"type": "or", "elements": [arguments.as_json(answer), self.calls(tools, one=one)]}

    def text_with_calls(self, tools: Mapping[str, dict[str, Any] | None], *, one: bool) -> dict[str, Any]:
        """Any text, with calls where it has the trigger; or either."""
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

    def _tag(self, name: str, schema: dict[str, Any] | None) -> dict[str, Any]:
        try:
            content = self.arguments(ANY_OBJECT if schema is None else schema)
        except (AttributeError, TypeError, ValueError):  # such as `properties` that are no object
            raise BadRequest(f"tools: the parameters of {name} are no JSON schema", "tools") from None
        begin = self.begin.replace("NAME", name)
        return {"type": "tag", "begin": begin, "content": content, "end": self.end}


def _one_of(answer: Any, tools: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """A schema of an answer, or of a call as `llama3_json` has it; None where the answer's refers to itself as a whole.
    What a tool's own schema defines stays with the answer: arguments of such a tool are any."""
    if not isinstance(answer, dict) or '"$ref":"#"' in json.dumps(answer, separators=(",", ":")):
        return None
    inner = {key: value for key, value in answer.items() if key not in _DEFINITIONS}
    options = [inner]
    for name, schema in tools.items():
        free = schema is None or any(key in schema for key in _DEFINITIONS)
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


_DEEPSEEK = calls.DeepSeek

# In the order in which they are looked for: what is found in others' templates too comes last.
TOOL_FORMATS = {
    "qwen3_coder": ToolFormat(
        reader=calls.QwenCoder,
        begin="<tool_call>\n<function=NAME>\n",
        end="</function>\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=arguments.as_xml,
        found_by=("<function=", "<parameter="),
    ),
    "hermes": ToolFormat(
        reader=calls.Hermes,
        begin='<tool_call>\n{"name": "NAME", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        found_by=("<tool_call>", "arguments"),
    ),
    "deepseek_v3": ToolFormat(
        reader=_DEEPSEEK,
        begin=f"{_DEEPSEEK.CALL}function{_DEEPSEEK.SEP}NAME\n```json\n",
        end=f"\n```{_DEEPSEEK.CALL_END}",
        separator="\n",
        found_by=(_DEEPSEEK.SEP, "```json"),
        head=_DEEPSEEK.BEGIN,
        tail=_DEEPSEEK.END,
        trigger=_DEEPSEEK.BEGIN,
        special=True,
    ),
    "deepseek_v31": ToolFormat(
        reader=_DEEPSEEK,
        begin=f"{_DEEPSEEK.CALL}NAME{_DEEPSEEK.SEP}",
        end=_DEEPSEEK.CALL_END,
        found_by=(_DEEPSEEK.SEP,),
        head=_DEEPSEEK.BEGIN,
        tail=_DEEPSEEK.END,
        trigger=_DEEPSEEK.BEGIN,
        special=True,
    ),
    "mistral_args": ToolFormat(
        reader=calls.Mistral,
        begin="[TOOL_CALLS]NAME[ARGS]",
        end="",
        trigger="[TOOL_CALLS]",
        special=True,
        id_length=9,
        found_by=("[TOOL_CALLS]", "[ARGS]"),
    ),
    "mistral": ToolFormat(
        reader=calls.Mistral,
        head="[TOOL_CALLS][",
        begin='{"name": "NAME", "arguments": ',
        end="}",
        separator=", ",
        tail="]",
        trigger="[TOOL_CALLS][",
        special=True,
        id_length=9,
        found_by=("[TOOL_CALLS]",),
    ),
    "pythonic": ToolFormat(
        reader=calls.Pythonic,
        head="[",
        begin="NAME(",
        end=")",
        separator=", ",
        tail="]",
        opening="[",
        arguments=arguments.as_python,
        found_by=("[func_name1(params_name1=params_value1",),
    ),
    "llama3_json": ToolFormat(
        reader=calls.Llama,
        begin='{"name": "NAME", "parameters": ',
        end="}",
        separator="; ",
        opening="{",
        special=True,
        found_by=("ipython", "parameters"),
    ),
    "json": ToolFormat(
        reader=calls.JsonList,
        head="[",
        begin='{"name": "NAME", "parameters": ',
        end="}",
        separator=", ",
        tail="]",
        opening="[",
        found_by=(),
    ),
}

# A model that thinks writes one of these; its template has both, since it leaves earlier thoughts out.
REASONING_MARKS = {
    "think": Marks("<think>", "</think>"),
    "magistral": Marks("[THINK]", "[/THINK]"),
    "seed": Marks("<seed:think>", "</seed:think>"),
    "command": Marks("<|START_THINKING|>", "<|END_THINKING|>"),
}
_SPECIAL_MARKS = ("magistral", "command")


@dataclass(frozen=True)
class Formats:
    """A model's. `tools` is None where no text is read for calls unless some are forced."""

    tools: ToolFormat | None = None
    reasoning: Marks | None = None
    special: bool = False  # whether the marks around thoughts may be special tokens

    @property
    def forced(self) -> ToolFormat:
        """The format of calls that a model has to make."""
        return self.tools or TOOL_FORMATS["json"]

    def with_token_ids(self, added_tokens: Mapping[str, int]) -> Formats:
        """Return the same, with the ids of the marks around thoughts, where each is one of the added tokens."""
        marks = self.reasoning
        if marks is None or not {marks.begin, marks.end} <= added_tokens.keys():
            return self
        ids = added_tokens[marks.begin], added_tokens[marks.end]
        return replace(self, reasoning=marks._replace(ids=ids))


NO_FORMATS = Formats()


def check_names(
    option: str, named: str | Mapping[str, str], known: Mapping[str, object], parsers: Parsers
) -> None:
    """Refuses what names no format.

    Args:
        parsers: vLLM's names of them.

    Raises:
        ValueError: there is none of that name.
    """
    for name in (named,) if isinstance(named, str) else named.values():
        try:
            _chosen(name, known, parsers)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None


def _chosen(name: str, known: Mapping[str, object], parsers: Parsers) -> str:
    return name if name in (AUTO, NONE) else chosen(name, parsers, known)


def formats_of(templates: Sequence[str], tools: str = AUTO, reasoning: str = AUTO) -> Formats:
    """The formats of a model, by its chat templates unless they are named."""
    text = "\n".join(templates)
    tools = _chosen(tools, TOOL_FORMATS, TOOL_PARSERS)
    reasoning = _chosen(reasoning, REASONING_MARKS, REASONING_PARSERS)
    if tools == "mistral" and all(map(text.__contains__, TOOL_FORMATS["mistral_args"].found_by)):
        tools = "mistral_args"  # vLLM has one name for both
    if tools == AUTO:
        tools = next(
            (
                name
                for name, one in TOOL_FORMATS.items()
                if one.found_by and all(map(text.__contains__, one.found_by))
            ),
            NONE,
        )
    if reasoning == AUTO:
        reasoning = next((name for name, marks in REASONING_MARKS.items() if marks.end in text), NONE)
    return Formats(TOOL_FORMATS.get(tools), REASONING_MARKS.get(reasoning), reasoning in _SPECIAL_MARKS)
