"""Parser of an answer's text: what the model thinks, says and calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pageant.actors.http.chat.tools import Tools, arguments_schema
from pageant.actors.parsers.base import OutputParser
from pageant.actors.parsers.custom_calls import CustomCalls
from pageant.actors.parsers.formats import Formats
from pageant.actors.parsers.reading import ChatParser
from pageant.actors.parsers.tool_format import ToolFormat


def parser(
    formats: Formats,
    tools: Tools | None,
    new_id: Callable[[int | None], str],
    *,
    tells_reasoning: bool,
    customs: frozenset[str] = frozenset(),
) -> Callable[[], OutputParser] | None:
    """Return the maker of parsers of a choice's text; None takes all of it as content. `customs` are custom
    tools' names.
    """
    form: ToolFormat | None = None
    if tools is not None:
        form = formats.forced if tools.is_forced else formats.tools
    elif formats.tools is not None and formats.tools.reader.reads_thoughts:
        form = formats.tools
    if form is None and formats.reasoning is None:
        return None

    schemas = (
        {}
        if tools is None
        else {one.function.name: _readable(one.function.parameters) for one in tools.tools}
    )

    def make() -> OutputParser:
        calls = form.reader(lambda: new_id(form.id_length), schemas) if form is not None else None
        if calls is not None:
            calls.takes_calls = tools is not None
        one = tools is not None and tools.one
        made = ChatParser(
            *(formats.reasoning, calls),
            one_call=one,
            only_calls=tools is not None and tools.is_forced,
            tells_reasoning=tells_reasoning,
        )
        return CustomCalls(made, customs) if customs else made

    return make


def shows_special(formats: Formats, tools: Tools | None) -> bool:
    """Tell whether special tokens must have a text, since some of them mean something to the parser."""
    form = formats.tools if tools is not None else None
    return formats.special or (form is not None and form.special)


def _readable(parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema by which arguments are read; None where nothing is known of them."""
    return None if parameters is None else arguments_schema(parameters)
