"""Requests for `/v1/responses`, and the chats that they mean."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pageant.actors.http.chat.turns import ContentPart, Turn, merged, says_nothing
from pageant.actors.http.openai.generation import SamplingFields
from pageant.actors.http.openai.offered_tools import UNHELD
from pageant.actors.http.openai.response_items import Item, is_reference
from pageant.actors.http.openai.response_tools import ResponseTool, chat_choice, chat_tools
from pageant.actors.parsers.formats import NO_FORMATS, Formats
from pageant.protocol.errors import BadRequest
from pageant.protocol.json_schemas import unenforced


class TextOptions(msgspec.Struct, kw_only=True):
    """`format`: what the text has to be."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


SAME = (*SamplingFields.__struct_fields__, "chat_template_kwargs", "user")
"""Fields that mean in a chat what they mean here."""
LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"


NAMES = {  # of a chat's parameters
    **{"messages": "input", "response_format": "text.format"},
    **{"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"},
}


class ResponseRequest(SamplingFields, kw_only=True):
    """`POST /v1/responses`."""

    input: str | tuple[Item, ...]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    tools: tuple[ResponseTool, ...] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled", "auto"] | None = None
    request_id: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    user: str | None = None
    include: tuple[str, ...] | None = None
    top_logprobs: int | None = None
    reasoning: dict[str, Any] | None = None

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """Return the fields that are known and given, and have no effect here."""
        names = [f"reasoning.{name}" for name in self.reasoning or {} if self._is_idle(name)]
        names += [f"tools:{kind}"[:128] for tool in self.tools or () for kind in tool.left_out()]
        names += [UNHELD for tool in self.tools or () if tool.has_unheld(formats)]
        items = enumerate(self.input) if not isinstance(self.input, str) else ()
        names += [name for index, item in items for name in _passed_over(item, index)]
        names += [f"include:{one}" for one in self.include or () if one not in (LOGPROBS, ENCRYPTED)]
        if self.text is not None and self.text.format is not None:
            names += [f"text.format ({name})" for name in unenforced(self.text.format.get("schema"))]
        names += ["top_logprobs"] * bool(self.top_logprobs and not self.includes(LOGPROBS))
        return list(dict.fromkeys(names + ["truncation"] * (self.truncation == "auto")))

    def _is_idle(self, name: str) -> bool:
        """Return whether a field of `reasoning` is given, and has no effect."""
        return name != "effort" and (self.reasoning or {})[name] is not None

    def includes(self, what: str) -> bool:
        """Return whether the response is to have this, which it has only where it is asked for."""
        return self.include is not None and what in self.include

    @property
    def is_stored(self) -> bool:
        """Tell whether the response can be retrieved afterwards, which is the default."""
        return self.store is not False

    def turns(self) -> list[Turn]:
        """Return its own turns, without those of a response that it follows."""
        if isinstance(self.input, str):
            return [Turn(role="user", content=self.input)]
        turns: list[Turn] = []
        for index, item in enumerate(self.input):
            turn = item.turn(f"input[{index}]")
            if turn is None:
                continue
            if turns and turn.role == turns[-1].role == "assistant":
                turn = _one(turns.pop(), turn)
            turns.append(turn)
            if (result := item.result_within(f"input[{index}]")) is not None:
                turns.append(result)
        return turns

    def chat_fields(self, before: list[Turn]) -> dict[str, Any]:
        """The chat that it means, as fields of a `ChatRequest`, after the turns `before`."""
        if self.background and not self.is_stored:
            raise BadRequest("background is true; expected store to be true with it", "background")
        said = [] if self.instructions is None else [Turn(role="system", content=self.instructions)]
        fields: dict[str, Any] = {
            "messages": tuple([*said, *before, *self.turns()]),
            "max_completion_tokens": self.max_output_tokens,
            "stream": self.stream,
        }
        if self.includes(LOGPROBS):
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.tools and (tools := chat_tools(self.tools)):
            fields["tools"] = tools
            fields["parallel_tool_calls"] = self.parallel_tool_calls
        if self.tools:
            fields["tool_choice"] = chat_choice(self.tool_choice)
        if self.reasoning is not None:
            fields["reasoning_effort"] = self.reasoning.get("effort")
        if self.text is not None and self.text.format is not None and self.text.format.get("type") != "text":
            fields["response_format"] = _response_format(self.text.format)
        return fields | {name: getattr(self, name) for name in SAME}


def _is_mute(item: Item, index: int) -> bool:
    """Return whether nothing of an item can be told to a model. What is wrong with it is said elsewhere."""
    try:
        return not is_reference(item) and item.turn(f"input[{index}]") is None
    except BadRequest:
        return False


def _passed_over(item: Item, index: int) -> list[str]:
    """Return the places of what an item has, and no model can be told of: the whole of it, or parts."""
    if _is_mute(item, index):
        return [f"input:{item.kind}"[:128]]
    parts = item.content if isinstance(item.content, tuple) else ()
    mute = [part for part in parts if isinstance(part, ContentPart) and says_nothing(part)]
    return [f"input[].content:{part.type}"[:128] for part in mute]


def _one(first: Turn, second: Turn) -> Turn:
    """Merge two items of one turn of the model, which come back separately."""
    contents = [turn.content for turn in (first, second) if turn.content is not None]
    parts = [part for one in contents for part in ((one,) if isinstance(one, str) else one)]
    thoughts = [turn.reasoning_content for turn in (first, second) if turn.reasoning_content]
    return Turn(
        role="assistant",
        content=merged(parts) if contents else None,
        reasoning_content="".join(thoughts) or None,
        tool_calls=(*(first.tool_calls or ()), *(second.tool_calls or ())) or None,
    )


def _response_format(form: dict[str, Any]) -> dict[str, Any]:
    """A text's format as chats have it: a schema's fields stand under a name of their own there."""
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}
