"""`/invocations`: a chat or a completion under the one path that SageMaker sends requests to."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, post

from pageant.actors.http.openai import chat, completions
from pageant.actors.http.openai.chat_requests import ChatRequest
from pageant.actors.http.openai.chat_shapes import ChatCompletion
from pageant.actors.http.openapi import describe
from pageant.actors.http.reading import read
from pageant.actors.http.service import Http, Service
from pageant.protocol.errors import BadRequest

NOTHING = msgspec.Raw(b"null")
SHAPES = (
    (ChatRequest, completions.CompletionRequest),
    (ChatCompletion, completions.Completion),
)


class _Kind(msgspec.Struct, kw_only=True):
    """The fields that tell one kind of request from another."""

    messages: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    prompt_embeds: msgspec.Raw = NOTHING


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/invocations", status_code=200, opt=describe(*SHAPES, streams=True))
    async def invoke(request: Http) -> Response[Any]:
        """Answer a conversation (`messages`), or complete a `prompt`."""
        kind, _ = read(await request.body(), _Kind)
        if kind.messages != NOTHING:
            return await chat.answer(service, request)
        if kind.prompt != NOTHING or kind.prompt_embeds != NOTHING:
            return await completions.answer(service, request)
        raise BadRequest("the request has neither messages nor prompt; expected one of them", "messages")

    return [invoke]
