"""`/tokenize`, `/detokenize` and `/tokenizer_info`, in vLLM's shape: what prompts and conversations are to a model."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.params import FromQuery

from pageant.actors.frontend.prompts import check_prompt, check_token_ids
from pageant.actors.http.chat.conversation import (
    DEFAULT_RULES,
    ConversationRules,
    tokenize_chat,
)
from pageant.actors.http.chat.turns import Turn
from pageant.actors.http.errors import NotFound
from pageant.actors.http.openapi import describe
from pageant.actors.http.served import Served
from pageant.actors.http.service import Http, Service
from pageant.actors.http.streams import encode
from pageant.actors.http.tokenizing import tokenized
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import Tokenize, TokenizeChat


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /tokenize`: either a `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: tuple[Turn, ...] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def question(self, served: Served, rules: ConversationRules = DEFAULT_RULES) -> Tokenize | TokenizeChat:
        """Return the question to the tokenizer.

        Raises:
            BadRequest: neither a prompt nor messages are given, or both, or invalid ones.
        """
        if (self.prompt is None) == (self.messages is None):
            raise BadRequest("expected either prompt or messages", "prompt")
        if self.prompt is not None:
            prompt = check_prompt(self.prompt, served.limits, served.limits.defaults)
            assert isinstance(prompt, Tokenize)
            return msgspec.structs.replace(prompt, add_special_tokens=self.add_special_tokens is not False)
        return tokenize_chat(
            self.messages or (),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            add_special_tokens=bool(self.add_special_tokens),
            tools=self.tools,
            template_kwargs=self.chat_template_kwargs,
            chat_template=self.chat_template,
            rules=rules,
        )


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    """Token ids and, if asked for, each token as the vocabulary spells it."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct, kw_only=True):
    """The text of token ids, special ones included."""

    prompt: str


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/tokenize", status_code=200, opt=describe(TokenizeRequest, TokenizeAnswer))
    async def tokenize(request: Http) -> Response[bytes]:
        """The token ids of a prompt or a conversation."""
        taken = await service.take(request, TokenizeRequest, "tokn")
        asked, served = taken.asked, taken.served
        tokens = (await tokenized(service, served, asked.question(served, service.rules))).token_ids.tolist()
        strings, most = None, served.limits.max_model_len
        if asked.return_token_strs:
            if len(tokens) > most:
                raise BadRequest(
                    f"return_token_strs is true with {len(tokens)} tokens; expected at most {most} with it",
                    "return_token_strs",
                )
            strings = list(await service.detokenize(served, [[token] for token in tokens], pieces=True))
        told = TokenizeAnswer(count=len(tokens), max_model_len=most, tokens=tokens, token_strs=strings)
        return Response(encode(told), headers=taken.headers, media_type="application/json")

    @get("/tokenizer_info", opt=describe())
    async def tokenizer_info(model: FromQuery[str | None] = None) -> Response[bytes]:
        """The configuration of a model's tokenizer, with its chat template."""
        served = service.model(model)
        if served.tokenizer_config is None:
            raise NotFound(f"the model {served.name!r} is served without a tokenizer", "model")
        return Response(encode(served.tokenizer_config), media_type="application/json")

    @post("/detokenize", status_code=200, opt=describe(DetokenizeRequest, DetokenizeAnswer))
    async def detokenize(request: Http) -> Response[bytes]:
        """The text of token ids."""
        taken = await service.take(request, DetokenizeRequest, "detok")
        asked, served = taken.asked, taken.served
        if asked.tokens:
            check_token_ids(asked.tokens, served.limits, "tokens")
        (text,) = await service.detokenize(served, [asked.tokens])
        told = DetokenizeAnswer(prompt=text)
        return Response(encode(told), headers=taken.headers, media_type="application/json")

    return [tokenize, detokenize, tokenizer_info]
