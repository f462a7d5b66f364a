"""`/v1/chat/completions/batch`: several conversations with the same parameters, one choice for each, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Response, post

from pageant.actors.http.answers import Piece
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.chat_answers import begin
from pageant.actors.http.openai.chat import (
    ChatWriter,
)
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.chat_shapes import ChatCompletion
from pageant.actors.http.openapi import describe
from pageant.actors.http.service import Http, Service, respond
from pageant.protocol.errors import BadRequest

_SINGLE = ("stream", "prompt_logprobs", "use_beam_search")
"""Parameters of a chat that a batch does not take."""


class ChatBatchRequest(ChatRequest, kw_only=True):
    """`POST /v1/chat/completions/batch`: `messages` are conversations."""

    messages: tuple[tuple[Turn, ...], ...]  # type: ignore[assignment]

    def chats(self) -> list[ChatRequest]:
        """Return a chat request for each conversation.

        Raises:
            BadRequest: there is none, or something is asked that batches do not have.
        """
        for name in _SINGLE:
            if (found := getattr(self, name)) not in (None, False):
                raise BadRequest(f"{name} is {found!r:.80}; expected none in a batch", name)
        for name in ("n", "best_of"):
            if getattr(self, name) not in (None, 1):
                raise BadRequest(f"{name} is {getattr(self, name)}; expected 1 in a batch", name)
        if not self.messages:
            raise BadRequest("messages is empty; expected at least one conversation", "messages")
        fields = {name: getattr(self, name) for name in ChatRequest.__struct_fields__ if name != "messages"}
        return [ChatRequest(messages=conversation, **fields) for conversation in self.messages]


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/chat/completions/batch", status_code=200, opt=describe(ChatBatchRequest, ChatCompletion))
    async def chat_batch(request: Http) -> Response[Any]:
        """Answer several conversations, with one choice for each."""
        taken = await service.take(request, ChatBatchRequest, "chatcmpl")
        chats, created = taken.asked.chats(), service.now()
        answers = begin(
            service,
            [chat.chat(taken.served, service.rules, num_chats=len(chats)) for chat in chats],
            taken.served,
            taken.name,
        )
        writers = [ChatWriter(chat, answers, taken.served.name, created) for chat in chats]

        async def whole(pieces: list[Piece]) -> ChatCompletion:
            return _joined(writers, pieces)

        return await respond(service, request, answers, whole, None, taken.headers)

    return [chat_batch]


def _joined(writers: Sequence[ChatWriter], pieces: Sequence[Piece]) -> ChatCompletion:
    """Return one response of the conversations' choices; usage counts all of them."""
    body = writers[0].response(())
    choices = [writer.choice(piece) for writer, piece in zip(writers, pieces, strict=True)]
    return msgspec.structs.replace(body, choices=choices, prompt_token_ids=None)
