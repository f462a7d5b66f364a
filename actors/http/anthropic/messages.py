"""`/v1/messages`: a chat as Anthropic's clients know it, with its events, and the counting of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from litestar import Response, post

from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.anthropic.requests import CountRequest, MessagesRequest
from pageant.actors.http.blocks import Block, Blocks, Step
from pageant.actors.http.chat_answers import begin
from pageant.actors.http.errors import ErrorBody, anthropic_kind
from pageant.actors.http.openapi import describe
from pageant.actors.http.service import Http, Service, respond
from pageant.actors.http.streams import encode
from pageant.actors.http.tokenizing import tokenized
from pageant.protocol.serving import Finished

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, kw_only=True):
    """Tokens in and out; those in are without those that were cached."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, kw_only=True):
    """A whole message."""

    id: str
    model: str
    content: list[dict[str, Any]]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    system_fingerprint: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(msgspec.Struct, kw_only=True):
    """The number of tokens of a chat before its answer."""

    input_tokens: int


def event(kind: str, **fields: Any) -> bytes:
    """An event in Anthropic's form, which has its type twice."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **fields}) + b"\n\n"


class MessagesWriter:
    """A message, whole or event by event."""

    def __init__(self, answers: Answers, model: str) -> None:
        self._answers, self._model = answers, model
        self._blocks = Blocks()
        self._finished: Finished | None = None

    def first(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        return (event("message_start", message=self._message([])), event("ping"))

    def next(self, piece: Piece) -> Sequence[bytes]:
        """See `StreamWriter`."""
        self._finished = piece.finished
        return list(self._events(self._blocks.feed(piece.said)))

    def last(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        reason, sequence = self._ending()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            *self._events(self._blocks.end()),
            event(
                "message_delta",
                delta=delta,
                usage=self._usage(),
                system_fingerprint=self._answers.fingerprint,
            ),
            event("message_stop"),
        ]

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """See `StreamWriter`."""
        kind = anthropic_kind(error.error)
        return (event("error", error=msgspec.structs.replace(error.error, type=kind)),)

    async def whole(self, pieces: list[Piece]) -> MessageAnswer:
        """Return the whole message."""
        self._finished = pieces[0].finished
        steps = [*self._blocks.feed(pieces[0].said), *self._blocks.end()]
        return self._message([_shown(block, whole=True) for step, block, _ in steps if step == "ends"])

    def _message(self, content: list[dict[str, Any]]) -> MessageAnswer:
        reason, sequence = self._ending()
        return MessageAnswer(
            id=self._answers.name,
            model=self._model,
            content=content,
            usage=self._usage(),
            stop_reason=reason,
            stop_sequence=sequence,
            system_fingerprint=self._answers.fingerprint,
        )

    def _usage(self) -> MessageUsage:
        answers = self._answers
        return MessageUsage(
            input_tokens=answers.num_prompt_tokens - answers.num_cached_tokens,
            output_tokens=answers.num_taken_tokens,
            cache_read_input_tokens=answers.num_cached_tokens,
        )

    def _ending(self) -> tuple[StopReason | None, str | None]:
        finished = self._finished
        if finished is None:
            return None, None
        if isinstance(finished.stop_reason, str):
            return "stop_sequence", finished.stop_reason
        if finished.reason == "stop":
            return "tool_use" if self._answers.choices[0].num_calls else "end_turn", None
        return "max_tokens", None

    def _events(self, steps: Iterator[tuple[Step, Block, str]]) -> Iterator[bytes]:
        for step, block, text in steps:
            if step == "begins":
                shown = _shown(block, whole=False)
                yield event("content_block_start", index=block.place, content_block=shown)
            elif step == "goes on":
                yield event("content_block_delta", index=block.place, delta=_delta(block, text))
            else:
                yield event("content_block_stop", index=block.place)


def _shown(block: Block, *, whole: bool) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text", "text": block.text if whole else ""}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text if whole else "", "signature": ""}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block) if whole else {}}


def _input(block: Block) -> Any:
    """A call's arguments as data. What a model writes need not be JSON; then it is kept as it is."""
    try:
        return msgspec.json.decode(block.text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"arguments": block.text}


def _delta(block: Block, text: str) -> dict[str, str]:
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/messages", status_code=200, opt=describe(MessagesRequest, MessageAnswer, streams=True))
    async def messages(request: Http) -> Response[Any]:
        """Answer a conversation, as Anthropic's API does."""
        taken = await service.take(request, MessagesRequest, "msg")
        answers = begin(service, [taken.asked.chat(taken.served, service.rules)], taken.served, taken.name)
        writer = MessagesWriter(answers, taken.served.name)
        told = writer if taken.asked.stream else None
        return await respond(service, request, answers, writer.whole, told, taken.headers)

    @post("/v1/messages/count_tokens", status_code=200, opt=describe(CountRequest, TokenCount))
    async def count_tokens(request: Http) -> Response[bytes]:
        """Count the tokens of a conversation."""
        taken = await service.take(request, CountRequest, "msg")
        question = taken.asked.conversation(service.rules)
        count = len((await tokenized(service, taken.served, question)).token_ids)
        told = encode(TokenCount(input_tokens=count))
        return Response(told, headers=taken.headers, media_type="application/json")

    return [messages, count_tokens]
