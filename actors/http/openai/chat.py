"""`/v1/chat/completions`: conversations, and what the model says next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Response, post

from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.chat.parsing import parser, shows_special
from pageant.actors.http.chat_answers import begin
from pageant.actors.http.errors import ErrorBody
from pageant.actors.http.naming import (
    written_as,
)
from pageant.actors.http.openai.beams import search
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.chat_shapes import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    CustomCall,
    Delta,
    FunctionCall,
    Message,
    ToolCall,
)
from pageant.actors.http.openai.logprobs import (
    chat_logprobs,
    prompt_logprobs,
)
from pageant.actors.http.openai.offered_tools import (
    customs,
)
from pageant.actors.http.openapi import describe
from pageant.actors.http.service import (
    Http,
    Service,
    Taken,
    respond,
)
from pageant.actors.http.shapes import Usage, usage_of
from pageant.actors.http.streams import Frame, encode, sse
from pageant.actors.http.templates import Template
from pageant.actors.parsers.base import CallPiece, joined
from pageant.protocol.errors import BadRequest


class ChatWriter:
    """A chat's answer, whole or chunk by chunk."""

    def __init__(
        self, asked: ChatRequest, answers: Answers, model: str, created: int, frame: Frame = sse
    ) -> None:
        self._asked, self._answers, self._frame = asked, answers, frame
        self._body = ChatChunk(id=answers.name, created=created, model=model, choices=[])
        self._plain = self._template()
        self._weights = answers.weight_version  # that the template names
        self._always_plain = not (asked.return_token_ids or asked.logprobs or asked.tells_usage_always)

    def first(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        echo = self._asked.echoed()
        delta = Delta(role="assistant", content=echo)
        chunks = [
            self._chunk([ChunkChoice(index=choice.index, delta=delta)]) for choice in self._answers.choices
        ]
        if self._asked.return_token_ids:
            chunks[0].prompt_token_ids = self._answers.prompts[0].token_ids
        return [self._frame(encode(chunk)) for chunk in chunks]

    def next(self, piece: Piece) -> Sequence[bytes]:
        """See `StreamWriter`."""
        said = piece.said
        if piece.finished is None and self._always_plain and not said.reasoning and not said.calls:
            if (weights := self._answers.weight_version) != self._weights:
                self._plain, self._weights = self._template(), weights
            return (self._plain.fill(piece.choice.index, said.content),) if said.content else ()
        thought = said.reasoning or None
        delta = Delta(content=said.content or None, reasoning_content=thought, reasoning=thought)
        if said.calls:
            delta.tool_calls = [_call(call, in_chunk=True) for call in said.calls]
        choice = ChunkChoice(index=piece.choice.index, delta=delta, **self._about(piece))
        return (self._frame(encode(self._chunk([choice]))),)

    def last(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        end = self._frame(b"[DONE]")
        if not self._asked.tells_usage:
            return (end,)
        return (self._frame(encode(self._chunk([], usage_of(self._answers)))), end)

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """See `StreamWriter`."""
        return (self._frame(encode(error)), self._frame(b"[DONE]"))

    async def whole(self, pieces: list[Piece]) -> ChatCompletion:
        """Return the whole response."""
        return self.response(pieces)

    def response(self, pieces: Sequence[Piece]) -> ChatCompletion:
        """Return the response with these choices."""
        asked, prompt, body = self._asked, self._answers.prompts[0], self._body
        return ChatCompletion(
            id=body.id,
            created=body.created,
            model=body.model,
            choices=[self.choice(piece) for piece in pieces],
            usage=usage_of(self._answers),
            system_fingerprint=self._answers.fingerprint,
            prompt_logprobs=(prompt_logprobs(prompt.logprobs) if asked.prompt_logprobs is not None else None),
            prompt_token_ids=prompt.token_ids if asked.return_token_ids else None,
        )

    def choice(self, piece: Piece) -> ChatChoice:
        """Return a whole choice."""
        return ChatChoice(index=piece.choice.index, message=self._message(piece), **self._about(piece))

    def _message(self, piece: Piece) -> Message:
        said = piece.said
        content: str | None = self._asked.echoed() + said.content
        return Message(
            content=content if content or not said.calls else None,
            reasoning_content=said.reasoning or None,
            reasoning=said.reasoning or None,
            tool_calls=[_call(call, in_chunk=False) for call in joined(said.calls)] or msgspec.UNSET,
        )

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> ChatChunk:
        if usage is None and self._asked.tells_usage_always:
            usage = usage_of(self._answers)
        fingerprint = self._answers.fingerprint
        return msgspec.structs.replace(
            self._body, choices=choices, usage=usage, system_fingerprint=fingerprint
        )

    def _template(self) -> Template:
        return Template(
            lambda index, text: self._chunk([ChunkChoice(index=index, delta=Delta(content=text))]),
            self._frame,
        )

    def _about(self, piece: Piece) -> dict[str, Any]:
        """Return the fields of a delta besides its content."""
        asked = self._asked
        about: dict[str, Any] = {}
        if piece.finished is not None:
            calls = piece.choice.num_calls and piece.finished.reason == "stop"
            about["finish_reason"] = "tool_calls" if calls else piece.finished.reason
            about["stop_reason"] = piece.finished.stop_reason
        if asked.logprobs:
            about["logprobs"] = chat_logprobs(
                piece.logprobs,
                piece.token_ids,
                asked.top_logprobs or 0,
                bool(asked.return_tokens_as_token_ids),
                self._answers.params.logprob_token_ids,
            )
        if asked.return_token_ids:
            about["token_ids"] = list(piece.token_ids)
        return about


def _call(call: CallPiece, in_chunk: bool) -> ToolCall:
    kind, index = "custom" if call.is_custom else "function", call.number if in_chunk else None
    told = ToolCall(index=index, id=call.id, type=kind if call.id is not None else None)
    if call.is_custom:
        told.custom = CustomCall(name=call.name, input=call.arguments)
    else:
        told.function = FunctionCall(name=call.name, arguments=call.arguments)
    return told


async def _search(service: Service, request: Http, taken: Taken[ChatRequest]) -> Answers:
    """Answer a conversation with what a beam search finds."""
    asked, formats, names = taken.asked, taken.served.formats, taken.asked.names()
    with written_as(names):
        tools = asked.callable()
        if tools is not None and tools.is_forced:
            raise BadRequest("tool_choice is given; expected auto with use_beam_search", "tool_choice")
        if shows_special(formats, tools) and asked.skip_special_tokens is None:
            asked.skip_special_tokens = False
        read = parser(
            *(formats, tools, service.new_call_id),
            tells_reasoning=asked.include_reasoning is not False,
            customs=customs(asked.tools),
        )
        return await search(service, request, taken, [asked.conversation(service.rules)], read)


async def answer(service: Service, request: Http) -> Response[Any]:
    """Return the response to a chat request.

    Raises:
        Exception: what is wrong with it, or what ended it.
    """
    taken = await service.take(request, ChatRequest, "chatcmpl")
    if taken.asked.use_beam_search:
        answers = await _search(service, request, taken)
    else:
        answers = begin(service, [taken.asked.chat(taken.served, service.rules)], taken.served, taken.name)
    writer = ChatWriter(taken.asked, answers, taken.served.name, service.now())
    told = writer if taken.asked.stream else None
    return await respond(service, request, answers, writer.whole, told, taken.headers)


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/chat/completions", status_code=200, opt=describe(ChatRequest, ChatCompletion, streams=True))
    async def chat_completions(request: Http) -> Response[Any]:
        """Answer a conversation."""
        return await answer(service, request)

    return [chat_completions]
