"""`/v1/chat/completions`: conversations, and what the model says next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from litestar import Response, post

from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.errors import ErrorBody
from pageant.actors.http.naming import (
    AS_INSIDE,
    Names,
    through,
    written_as,
)
from pageant.actors.http.openai.beams import search
from pageant.actors.http.openai.conversation import (
    DEFAULT_RULES,
    TEMPLATES,
    ConversationRules,
    tokenize_chat,
)
from pageant.actors.http.openai.generation import Generation
from pageant.actors.http.openai.logprobs import (
    ChatLogprobs,
    PromptLogprob,
    chat_logprobs,
    prompt_logprobs,
)
from pageant.actors.http.openai.offered_tools import (
    Choice,
    OfferedTool,
    chosen,
    customs,
    functions_of,
    held_arguments,
    left_out,
)
from pageant.actors.http.openai.structure import (
    Tools,
    parser,
    shows_special,
    with_reasoning,
)
from pageant.actors.http.openai.turns import Turn
from pageant.actors.http.openapi import describe
from pageant.actors.http.reading import convert
from pageant.actors.http.served import Served
from pageant.actors.http.service import (
    Http,
    Service,
    Taken,
    respond,
)
from pageant.actors.http.shapes import Reason, Usage, usage_of
from pageant.actors.http.streams import Frame, encode, sse
from pageant.actors.http.templates import Template
from pageant.actors.parsers.base import CallPiece, OutputParser, joined
from pageant.actors.parsers.formats import NO_FORMATS, Formats
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import TokenizeChat


class ChatRequest(Generation, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: tuple[Turn, ...]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: tuple[OfferedTool, ...] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None
    documents: tuple[dict[str, Any], ...] | None = None

    def fields_without_effect(self, formats: Formats = NO_FORMATS) -> list[str]:
        """Return the places of what is known here, and cannot be told to a model."""
        conversations = [one if isinstance(one, tuple) else (one,) for one in self.messages]
        said = [place for turns in conversations for turn in turns for place in turn.passed_over()]
        return list(
            dict.fromkeys([*super().fields_without_effect(formats), *left_out(self.tools, formats), *said])
        )

    def num_logprobs(self) -> int | None:
        """See `Generation`."""
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs is given; expected logprobs to be true with it", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def names(self) -> Names:
        """Return the client's names of parameters that have other names inside."""
        newer = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**TEMPLATES, "prompt": "messages", "logprobs": "top_logprobs", "max_tokens": newer}

    def max_output_tokens(self, default: int | None) -> int | None:
        """See `Generation`. OpenAI's newer name wins."""
        newer = self.max_completion_tokens
        return super().max_output_tokens(default) if newer is None else newer

    def template_kwargs(self) -> dict[str, Any]:
        """Return further variables of the chat template. Those that the request names itself win.

        Templates have no common name for whether the model thinks: `thinking` is DeepSeek's and Granite's.
        """
        given: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            thinks = self.reasoning_effort != "none"
            given = {
                "reasoning_effort": self.reasoning_effort,
                "enable_thinking": thinks,
                "thinking": thinks,
            }
        return {**given, **(self.chat_template_kwargs or {})}

    def conversation(self, rules: ConversationRules = DEFAULT_RULES) -> TokenizeChat:
        """The messages, as the tokenizer takes them.

        Raises:
            BadRequest: what is wrong with one of them.
        """
        return tokenize_chat(
            self.messages,
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            add_special_tokens=bool(self.add_special_tokens),
            tools=functions_of(self.tools, self.tool_choice) if self.tool_choice != "none" else None,
            template_kwargs=self.template_kwargs(),
            documents=self.documents,
            chat_template=self.chat_template,
            rules=rules,
        )

    def echoed(self) -> str:
        """Return the text that every choice begins with."""
        final = self.messages[-1]
        if not self.echo or self.add_generation_prompt is not False or final.role != "assistant":
            return ""
        return final.text("messages") or ""

    def callable(self) -> Tools | None:
        """The tools that may be called.

        Raises:
            BadRequest: what is wrong with them.
        """
        found = functions_of(self.tools, self.tool_choice)
        return Tools.of(found, chosen(self.tool_choice), self.parallel_tool_calls, held_arguments(self.tools))


class FunctionCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function's name, or the next part of its arguments, which are JSON."""

    name: str | None = None
    arguments: str = msgspec.field(default_factory=str)


class CustomCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A custom tool's name, or the next part of its input, which is a text."""

    name: str | None = None
    input: str = msgspec.field(default_factory=str)


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call, or the next of one: of a function, or of a custom tool. `index` numbers them in chunks only."""

    function: FunctionCall | None = None
    custom: CustomCall | None = None
    id: str | None = None
    type: str | None = None
    index: int | None = None


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The next of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class Message(msgspec.Struct, kw_only=True):
    """A whole message."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """A message with how it ended."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of a message, with how it ended in the last one."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """A chunk of an answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class ChatTelling:
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
        """See `Telling`."""
        echo = self._asked.echoed()
        delta = Delta(role="assistant", content=echo)
        chunks = [
            self._chunk([ChunkChoice(index=choice.index, delta=delta)]) for choice in self._answers.choices
        ]
        if self._asked.return_token_ids:
            chunks[0].prompt_token_ids = self._answers.prompts[0].token_ids
        return [self._frame(encode(chunk)) for chunk in chunks]

    def next(self, piece: Piece) -> Sequence[bytes]:
        """See `Telling`."""
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
        """See `Telling`."""
        end = self._frame(b"[DONE]")
        if not self._asked.tells_usage:
            return (end,)
        return (self._frame(encode(self._chunk([], usage_of(self._answers)))), end)

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """See `Telling`."""
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


def as_chat(fields: dict[str, Any], names: Names) -> ChatRequest:
    """A chat of its fields.

    Args:
        names: what these are called where they come from.

    Raises:
        BadRequest: one of them is given, and chats do not have it.
    """
    known = ChatRequest.__struct_fields__
    for name, value in fields.items():
        if name not in known and value not in (None, [], ()):
            raise BadRequest(f"{name} is given; expected none: this server has no {name}", name)
    with written_as(names):
        return convert(
            msgspec.to_builtins({name: fields[name] for name in fields if name in known}), ChatRequest
        )


def begin(
    service: Service, asked: ChatRequest, served: Served, name: str, names: Names = AS_INSIDE
) -> Answers:
    """Begins to answer a conversation.

    Args:
        names: of parameters, where the chat was made of another kind of request.

    Raises:
        BadRequest: what is wrong with it.
    """
    return begin_all(service, [asked], served, name, names)


def begin_all(
    service: Service, chats: Sequence[ChatRequest], served: Served, name: str, names: Names = AS_INSIDE
) -> Answers:
    """Begin to answer several conversations, whose requests differ in nothing else. See `begin`."""
    names = through(chats[0].names(), names)
    with written_as(names):
        return _begin(service, chats, served, name, names)


def _begin(
    service: Service, chats: Sequence[ChatRequest], served: Served, name: str, names: Names
) -> Answers:
    asked = chats[0]
    if asked.use_beam_search:
        raise BadRequest("use_beam_search is true; expected false here", "use_beam_search")
    if asked.prompt_embeds is not None:
        reason = "expected none in a chat, whose prompt its template writes: send them to /v1/completions"
        raise BadRequest(f"prompt_embeds is given; {reason}", "prompt_embeds")
    params = asked.sampling_params(served.limits.defaults, served.max_new_tokens, len(chats))
    prompts, settings = [chat.conversation(service.rules) for chat in chats], asked.settings()
    tools, structure, formats = asked.callable(), asked.structure(), served.formats
    if tools is not None:
        structure = tools.structure(formats, structure)
    special = (
        False
        if shows_special(formats, tools) and asked.skip_special_tokens is None
        else params.skip_special_tokens
    )
    params = msgspec.structs.replace(
        params, structured_outputs=with_reasoning(structure.asked, formats), skip_special_tokens=special
    )
    read = _reader(service, asked, formats, tools)
    names = through({"structured_outputs": structure.place}, names)
    return service.begin(served, prompts, params, name, settings, read, whole=not asked.stream, names=names)


def _reader(
    service: Service, asked: ChatRequest, formats: Formats, tools: Tools | None
) -> Callable[[], OutputParser] | None:
    return parser(
        *(formats, tools, service.new_call_id),
        tells_reasoning=asked.include_reasoning is not False,
        customs=customs(asked.tools),
    )


async def _search(service: Service, request: Http, taken: Taken[ChatRequest]) -> Answers:
    """Answer a conversation with what a beam search finds."""
    asked, formats, names = taken.asked, taken.served.formats, taken.asked.names()
    with written_as(names):
        tools = asked.callable()
        if tools is not None and tools.is_forced:
            raise BadRequest("tool_choice is given; expected auto with use_beam_search", "tool_choice")
        if shows_special(formats, tools) and asked.skip_special_tokens is None:
            asked.skip_special_tokens = False
        read = _reader(service, asked, formats, tools)
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
        answers = begin(service, taken.asked, taken.served, taken.name)
    telling = ChatTelling(taken.asked, answers, taken.served.name, service.now())
    told = telling if taken.asked.stream else None
    return await respond(service, request, answers, telling.whole, told, taken.headers)


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/chat/completions", status_code=200, opt=describe(ChatRequest, ChatCompletion, streams=True))
    async def chat_completions(request: Http) -> Response[Any]:
        """Answer a conversation."""
        return await answer(service, request)

    return [chat_completions]
