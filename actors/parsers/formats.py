"""Formats in which models write calls and reasoning, and their grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pageant.actors.parsers import arguments, calls, harmony, marked_calls, xml_calls
from pageant.actors.parsers.names import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    Parsers,
    chosen,
)
from pageant.actors.parsers.reading import Marks
from pageant.actors.parsers.tool_format import ToolFormat
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import plugins_of

AUTO, NONE = "auto", "none"
HARMONY = "harmony"
"""Thoughts and calls in one format: whichever option names it, or whose calls it is found by, it is both."""
_DEEPSEEK = calls.DeepSeek
_NAMED: dict[str, Any] = {"begin": '{"name": "NAME", "arguments": ', "end": "}", "separator": ", "}
"""Calls as objects of a list."""

# In the order in which they are looked for: what is found in others' templates too comes last.
TOOL_FORMATS = {
    HARMONY: ToolFormat(
        reader=harmony.Harmony,
        begin=harmony.CALL,
        end="",
        special=True,
        single=True,
        answer_begin=harmony.FINAL,
        found_by=("<|channel|>", "<|message|>"),
    ),
    "qwen3_coder": ToolFormat(
        reader=xml_calls.QwenCoder,
        begin="<tool_call>\n<function=NAME>\n",
        end="</function>\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=arguments.QWEN.of_schema,
        text=arguments.QWEN.of_text,
        found_by=("<function=", "<parameter="),
    ),
    "glm47": ToolFormat(
        reader=xml_calls.Glm,
        begin="<tool_call>NAME",
        end="</tool_call>",
        trigger="<tool_call>",
        arguments=arguments.GLM.of_schema,
        text=arguments.GLM.of_text,
        found_by=("{function-name}<arg_key>",),
    ),
    "glm45": ToolFormat(
        reader=xml_calls.Glm,
        begin="<tool_call>NAME\n",
        end="</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=arguments.GLM_LINES.of_schema,
        text=arguments.GLM_LINES.of_text,
        found_by=("<arg_key>", "<arg_value>"),
    ),
    "minimax_m2": ToolFormat(
        reader=xml_calls.MiniMax,
        head="<minimax:tool_call>\n",
        begin='<invoke name="NAME">\n',
        end="</invoke>\n",
        tail="</minimax:tool_call>",
        trigger="<minimax:tool_call>",
        special=True,
        arguments=arguments.MINIMAX.of_schema,
        text=arguments.MINIMAX.of_text,
        found_by=("<minimax:tool_call>", "<invoke name="),
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
        text=arguments.text_as_python,
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
    "granite": ToolFormat(
        reader=marked_calls.Granite,
        head="<|tool_call|>[",
        **_NAMED,
        tail="]",
        trigger="<|tool_call|>",
        special=True,
        found_by=("<|tool_call|>",),
    ),
    "granite-20b-fc": ToolFormat(
        reader=marked_calls.Granite20b,
        begin='<function_call> {"name": "NAME", "arguments": ',
        end="}",
        separator="\n",
        trigger="<function_call>",
        found_by=("<function_call>",),
    ),
    "jamba": ToolFormat(
        reader=marked_calls.Jamba,
        head="<tool_calls>[",
        **_NAMED,
        tail="]</tool_calls>",
        trigger="<tool_calls>",
        found_by=("<tool_calls>[",),
    ),
    "longcat": ToolFormat(
        reader=marked_calls.Longcat,
        begin='<longcat_tool_call>{"name": "NAME", "arguments": ',
        end="}</longcat_tool_call>",
        separator="\n",
        trigger="<longcat_tool_call>",
        found_by=("<longcat_tool_call>",),
    ),
    "internlm": ToolFormat(
        reader=marked_calls.Internlm,
        begin='<|action_start|><|plugin|>\n{"name": "NAME", "parameters": ',
        end="}<|action_end|>",
        separator="\n",
        trigger="<|action_start|><|plugin|>",
        special=True,
        found_by=("<|action_start|>",),
    ),
    "phi4_mini_json": ToolFormat(
        reader=marked_calls.Phi4Mini,
        head="functools[",
        **_NAMED,
        tail="]",
        trigger="functools[",
        found_by=("functools[",),
    ),
    "lfm2": ToolFormat(
        reader=marked_calls.Lfm2,
        head="<|tool_call_start|>[",
        begin="NAME(",
        end=")",
        separator=", ",
        tail="]<|tool_call_end|>",
        trigger="<|tool_call_start|>",
        arguments=arguments.as_python,
        text=arguments.text_as_python,
        special=True,
        found_by=("<|tool_call_start|>",),
    ),
    "xlam": ToolFormat(
        reader=marked_calls.Xlam,
        head="[",
        **_NAMED,
        tail="]",
        opening="[",
        found_by=(),
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
    HARMONY: Marks(harmony.THOUGHT, harmony.THOUGHT_END),
}
_SPECIAL_MARKS = ("magistral", "command", HARMONY)


@dataclass(frozen=True)
class Formats:
    """The formats of one model's output."""

    tools: ToolFormat | None = None
    """The format of its tool calls; None where text is not read for calls, unless a request forces some."""
    reasoning: Marks | None = None
    """The marks around its reasoning; None where it has none."""
    special: bool = False
    """The marks around reasoning may be special tokens."""

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


def tool_formats() -> Mapping[str, ToolFormat]:
    """Return all formats of tool calls by their names: ours, then those of plugins.

    Raises:
        TopologyError: a plugin cannot be loaded, or is no ToolFormat.
    """
    added = {
        name: plugin.load() for name, plugin in plugins_of("parsers").items() if name not in TOOL_FORMATS
    }
    for name, one in added.items():
        if not isinstance(one, ToolFormat):
            raise TopologyError(f"plugin {name!r}", f"found a {type(one).__name__}; expected a ToolFormat")
    return {**TOOL_FORMATS, **added}


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
    text, known = "\n".join(templates), tool_formats()
    tools = _chosen(tools, known, TOOL_PARSERS)
    reasoning = _chosen(reasoning, REASONING_MARKS, REASONING_PARSERS)
    if tools == "mistral" and TOOL_FORMATS["mistral_args"].is_found_in(text):
        tools = "mistral_args"  # vLLM has one name for both
    if tools == AUTO:
        tools = next((name for name, one in known.items() if one.is_found_in(text)), NONE)
    if reasoning == AUTO:
        found = (name for name, marks in REASONING_MARKS.items() if marks.end in text)
        reasoning = next((name for name in found if name != HARMONY), NONE)
    if HARMONY in (tools, reasoning):
        tools = reasoning = HARMONY
    return Formats(known.get(tools), REASONING_MARKS.get(reasoning), reasoning in _SPECIAL_MARKS)
