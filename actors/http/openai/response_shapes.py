"""A response of `/v1/responses`, and the items that it puts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pageant.actors.http.answers import Answers
from pageant.actors.http.blocks import Block
from pageant.actors.http.chat.turns import (
    CalledCustom,
    CalledFunction,
    CalledTool,
    Turn,
)
from pageant.actors.http.openai.client_tools import CLIENT_TOOLS, called_with
from pageant.actors.http.openai.logprobs import ChatTokenLogprob
from pageant.actors.http.openai.opaque import sealed
from pageant.actors.http.openai.response_requests import ResponseRequest
from pageant.actors.http.openai.response_tools import CallForm

NO_FORMS: Mapping[str, CallForm] = {}
_CALL_PREFIXES = {
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "local_shell_call": "lsh",
    "shell_call": "sh",
}
Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Tokens in and out."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens_details: dict[str, int]


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, as far as it has come."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[dict[str, Any]] = msgspec.field(default_factory=list)
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: Any = None
    tool_choice: Any = "auto"
    tools: Any = msgspec.field(default_factory=list)
    truncation: str = "disabled"
    store: bool = True
    background: bool = False
    usage: ResponseUsage | None = None
    top_logprobs: int = 0
    reasoning: dict[str, Any] | None = None
    user: str | None = None
    completed_at: int | None = None
    system_fingerprint: str | None = None
    object: Literal["response"] = "response"


class Deleted(msgspec.Struct, kw_only=True):
    """A response that is stored no more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


def response_of(asked: ResponseRequest, name: str, model: str, created: int) -> ResponseObject:
    """The response at its beginning."""
    return ResponseObject(
        id=name,
        created_at=created,
        model=model,
        status="queued" if asked.background else "in_progress",
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        metadata=asked.metadata or {},
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        previous_response_id=asked.previous_response_id,
        temperature=asked.temperature,
        top_p=asked.top_p,
        text=asked.text or {"format": {"type": "text"}},
        tool_choice=asked.tool_choice or "auto",
        tools=list(asked.tools or ()),
        store=asked.is_stored,
        background=bool(asked.background),
        top_logprobs=asked.top_logprobs or 0,
        reasoning=asked.reasoning,
        user=asked.user,
    )


def usage_of(answers: Answers) -> ResponseUsage:
    """The usage of a request, so far."""
    taken, made = answers.num_prompt_tokens, answers.num_taken_tokens
    return ResponseUsage(
        input_tokens=taken,
        output_tokens=made,
        total_tokens=taken + made,
        input_tokens_details={"cached_tokens": answers.num_cached_tokens},
        output_tokens_details={"reasoning_tokens": answers.num_reasoning_tokens},
    )


class ItemShapes:
    """Shapes of a response's items and of their parts.

    Args:
        encrypts: reasoning is told as an opaque string too.
        forms: how calls are told, by the tools' names, where it is not as a function's.
    """

    def __init__(self, response_id: str, *, encrypts: bool, forms: Mapping[str, CallForm] = NO_FORMS) -> None:
        self._name, self._encrypts, self._forms = response_id.removeprefix("resp-"), encrypts, forms
        self.logprobs: dict[int, list[ChatTokenLogprob]] = {}
        """By a text block's place, of its tokens so far."""

    def item(self, block: Block, *, whole: bool) -> dict[str, Any]:
        """Return a block as an item of the output; without what it holds unless it is `whole`."""
        status: Status = "completed" if whole else "in_progress"
        name = f"{self._name}-{block.place}"
        if block.kind == "call":
            return self._call(block, name, block.text if whole else "", status)
        content = [self.part(block, whole=True)] if whole else []
        if block.kind == "reasoning":
            shown = {
                "type": "reasoning",
                "id": f"rs_{name}",
                "summary": [],
                "content": content,
                "status": status,
            }
            return {**shown, "encrypted_content": sealed(block.text)} if whole and self._encrypts else shown
        return {
            **{"type": "message", "id": f"msg_{name}", "role": "assistant"},
            **{"content": content, "status": status},
        }

    def type_of(self, call: Block) -> str:
        """Return the type of a call's item."""
        if call.is_custom:
            return "custom_tool_call"
        return self._form(call).type

    def _form(self, call: Block) -> CallForm:
        return self._forms.get(call.name) or CallForm(call.name)

    def _call(self, call: Block, name: str, text: str, status: Status) -> dict[str, Any]:
        kind, form = self.type_of(call), self._form(call)
        shown: dict[str, Any] = {"type": kind, "id": f"{_CALL_PREFIXES.get(kind, 'call')}_{name}"}
        shown["call_id"] = call.id or f"call_{name}"
        if (client := CLIENT_TOOLS.get(form.name)) is not None and kind == form.type != "function_call":
            return {**shown, client.field: called_with(client, text), "status": status}
        shown["name"] = form.name
        if form.namespace is not None:
            shown["namespace"] = form.namespace
        return {**shown, "input" if call.is_custom else "arguments": text, "status": status}

    def part(self, block: Block, *, whole: bool) -> dict[str, Any]:
        """Return a block's text as a part of its item."""
        text = block.text if whole else ""
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = self.logprobs.get(block.place, []) if whole else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _called(block: Block) -> CalledTool:
    if block.is_custom:
        return CalledTool(id=block.id, type="custom", custom=CalledCustom(name=block.name, input=block.text))
    return CalledTool(id=block.id, function=CalledFunction(name=block.name, arguments=block.text))


def turns_of(blocks: list[Block]) -> list[Turn]:
    """Return the model's content blocks as turns of the conversation that continues them."""
    reasoning = "".join(block.text for block in blocks if block.kind == "reasoning")
    text = "".join(block.text for block in blocks if block.kind == "text")
    calls = tuple(_called(block) for block in blocks if block.kind == "call")
    content = text if text or not calls else None
    return [
        Turn(role="assistant", content=content, reasoning_content=reasoning or None, tool_calls=calls or None)
    ]
