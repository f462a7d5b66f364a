"""The tokenizer: turns prompts into token ids, off the event loop."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.tokenizer.request_templates import Rendering, RequestTemplates
from pageant.models.chat_images import ContentKinds, Medium, for_template, marked
from pageant.models.chat_template import ChatTemplateError, ChatTemplateFailed
from pageant.models.tokenization import Tokenization
from pageant.protocol.arrays import int32
from pageant.protocol.encoding import ImagePart, VideoPart
from pageant.protocol.roles import TOKENIZER, Feature
from pageant.protocol.tokenizing import (
    ChatMessage,
    Detokenize,
    Detokenized,
    NotTokenized,
    Tokenize,
    TokenizeChat,
    Tokenized,
    ToolCall,
)

log = logging.getLogger("pageant.tokenizer")

# A text of at most so many characters is tokenized in less time than handing it to a thread takes.
SHORT_CHARACTERS = 2048
# The tokens of so many characters take at most 100 MB.
LONG_CHARACTERS = 500_000
# Characters per token. The tokens of a long text with more are counted before it is tokenized.
USUAL_LENGTH_MAX = 8
# At most so many tokens are decoded in less time than handing them to a thread takes.
SHORT_TOKENS = 2048


class Tokenizer(Actor):
    """Turns texts and conversations into token ids.

    A conversation is rendered by the checkpoint's own template, in a sandbox.
    """

    role = TOKENIZER
    features = frozenset({Feature.CHAT})
    offload_threads = 2

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of a tokenizer.

        Attributes:
            model: the checkpoint's folder.
            tokenizer: the folder of the tokenizer; None is the checkpoint's.
            skip_tokenizer_init: load no tokenizer: every text is refused, and token ids have no text.
            chat_template: the Jinja template of conversations; None is the tokenizer's own.
        """

        model: str
        tokenizer: str | None = None
        skip_tokenizer_init: bool = False
        chat_template: str | None = None

    _request_templates: RequestTemplates | None = None
    """Made for the first request that brings a template."""

    async def on_start(self) -> None:
        self._tokenization = await self.offload(self._load)

    async def on_stop(self) -> None:
        if self._request_templates is not None:
            await self.offload(self._request_templates.close)

    def _load(self) -> Tokenization:
        options = self.options
        return Tokenization.of_model(
            options.model,
            options.tokenizer,
            skip=options.skip_tokenizer_init,
            now=self._now,
            chat_template=options.chat_template,
        )

    def _now(self) -> datetime.datetime:
        """Return the wall-clock time, for templates that tell the model the date."""
        return datetime.datetime.fromtimestamp(self.clock.wall(), datetime.UTC).replace(tzinfo=None)

    @receives(concurrent=True)
    async def tokenize(self, request: Tokenize) -> Tokenized | NotTokenized:
        """Return a text's token ids, or those of a pair."""
        if request.pair is None and request.truncate_to is None:
            return await self._tokenized(request.text, request)
        if self.options.skip_tokenizer_init:
            return _without_tokenizer()
        return await self._tokenized_pair(request)

    async def _tokenized_pair(self, request: Tokenize) -> Tokenized | NotTokenized:
        """Return the token ids of a pair, or of a text that is cut."""
        text, pair = self.prepare(request.text), request.pair
        if pair is not None:
            pair = self.prepare(pair)
            if (most := request.pair_tokens_max) is not None:
                # Whatever is behind this many characters is in none of its first tokens.
                pair = _cut(pair, most * self._tokenization.token_length_max, request.truncation_side)
        if (most := request.truncate_to) is not None:
            longest = max(LONG_CHARACTERS, most * self._tokenization.token_length_max)
            text = _cut(text, longest, request.truncation_side)
            pair = None if pair is None else _cut(pair, longest, request.truncation_side)
        elif (most := request.tokens_max) is not None:
            longest = max(SHORT_CHARACTERS, most * self._tokenization.token_length_max)
            length = len(text) + len(pair or "")
            if length > longest:
                reason = f"the texts have {length} characters; {most} tokens, the most that are "
                return NotTokenized(reason=f"{reason}taken, have at most {longest}", parameter="prompt")
        encode = partial(
            self._tokenization.encode_pair,
            text,
            pair,
            truncate_to=request.truncate_to,
            side=request.truncation_side,
            pair_max=request.pair_tokens_max,
        )
        try:
            short = len(text) + len(pair or "") <= SHORT_CHARACTERS
            ids, second = encode() if short else await self.offload(encode)
        except ValueError as error:
            return NotTokenized(reason=f"truncate_prompt_tokens: {error}", parameter="truncate_prompt_tokens")
        return Tokenized(token_ids=int32(ids), text=text, second_segment=second)

    @receives(concurrent=True)
    async def tokenize_chat(self, request: TokenizeChat) -> Tokenized | NotTokenized:
        """Return a conversation's token ids, as the checkpoint's template renders it."""
        if request.placeholder is None and any(message.parts for message in request.messages):
            return NotTokenized(
                reason="messages has images or videos; expected texts alone here", parameter="messages"
            )
        if request.chat_template is not None and self._request_templates is None:
            self._request_templates = RequestTemplates(self._tokenization.special_tokens)
        try:
            text = await self.offload(self._render, request)
        except ChatTemplateFailed as error:
            # The error's text is the template's, which clients must not see.
            log.warning("%s", error)
            return NotTokenized(reason=error.summary, parameter="messages")
        except ChatTemplateError as error:
            return NotTokenized(reason=str(error), parameter=_blamed(str(error)))
        return await self._tokenized(text, request)

    async def _tokenized(self, text: str, request: Tokenize | TokenizeChat) -> Tokenized | NotTokenized:
        if self.options.skip_tokenizer_init:
            return _without_tokenizer()
        text = self.prepare(text)
        if request.placeholder is not None and request.around:
            mark = self._mark(request.placeholder)
            text = text.replace(mark, f"{request.around}{mark}{request.around}")
        if (most := request.tokens_max) is not None:
            longest = self._tokenization.token_length_max
            reason = f"the prompt has {len(text)} characters; {most} tokens, the most that are taken, "
            if len(text) > max(SHORT_CHARACTERS, most * longest):
                return NotTokenized(reason=f"{reason}have at most {most * longest}", parameter="prompt")
            is_long = len(text) > max(LONG_CHARACTERS, most * USUAL_LENGTH_MAX)
            if is_long and await self.offload(self._tokenization.exceeds, text, most):
                return NotTokenized(reason=f"{reason}are not enough for them", parameter="prompt")
        return Tokenized(token_ids=int32(await self._encode(text, request.add_special_tokens)), text=text)

    def prepare(self, text: str) -> str:
        """Return the text whose tokens the model gets in place of `text`. A subclass overrides this; here it is `text`.

        Called once for each prompt, a conversation after its template was rendered. Runs on the event loop.
        """
        return text

    def _render(self, request: TokenizeChat) -> str:
        tools = msgspec.json.decode(request.tools) if request.tools is not None else None
        messages: list[Mapping[str, Any]] = [_for_template(message) for message in request.messages]
        if request.chat_template is not None:
            messages = [*for_template(messages, ContentKinds(lists=True), self._marks(request))]
            return self._render_by(request.chat_template, request, messages, tools)
        fit = self._tokenization.fit_chat(messages, with_tools=tools is not None)
        return self._tokenization.render_chat(
            for_template(fit, self._tokenization.content_kinds, self._marks(request)),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=tools,
            template_kwargs=msgspec.json.decode(request.template_kwargs or "{}"),
        )

    def _marks(self, request: TokenizeChat) -> dict[Medium, str]:
        """Return the texts of the tokens that stand for images and videos."""
        found = {Medium.IMAGE: request.placeholder, Medium.VIDEO: request.video_placeholder}
        return {medium: self._mark(token) for medium, token in found.items()}

    def _mark(self, token: int | None) -> str:
        """Return the text of a token that stands for an image or a video; empty where there is none."""
        return "" if token is None else self._tokenization.id_to_token(token) or ""

    def _render_by(
        self, template: str, request: TokenizeChat, messages: list[Mapping[str, Any]], tools: Any
    ) -> str:
        """Render a conversation with a template of the request's own."""
        assert self._request_templates is not None, "made before"
        return self._request_templates.render(
            Rendering(
                template,
                [dict(message) for message in messages],
                request.add_generation_prompt,
                request.continue_final_message,
                tools,
                msgspec.json.decode(request.template_kwargs or "{}"),
                self._now(),
            )
        )

    @receives(concurrent=True)
    async def detokenize(self, request: Detokenize) -> Detokenized:
        """Return the texts of whole outputs."""
        if len(request.token_ids) <= SHORT_TOKENS:
            return self._detokenized(request)
        return await self.offload(self._detokenized, request)

    def _detokenized(self, request: Detokenize) -> Detokenized:
        token_ids, first, texts = request.token_ids.tolist(), 0, []
        for count in request.counts.tolist():
            ids = token_ids[first : first + count]
            if request.pieces:
                text = "".join(self._tokenization.id_to_token(token) or "" for token in ids)
            else:
                text = self._tokenization.decode(ids, skip_special_tokens=request.skip_special_tokens)
            texts.append(text)
            first += count
        return Detokenized(texts=tuple(texts))

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= SHORT_CHARACTERS:
            return self._tokenization.encode(text, add_special_tokens)
        return await self.offload(self._tokenization.encode, text, add_special_tokens)


def _without_tokenizer() -> NotTokenized:
    reason = "the model is served without a tokenizer (skip_tokenizer_init); expected token ids"
    return NotTokenized(reason=reason, parameter="prompt")


def _cut(text: str, most: int, side: str) -> str:
    """Return the beginning of a text, or its end, of at most so many characters."""
    return text[:most] if side == "right" else text[-most:]


def _blamed(complaint: str) -> str:
    """Return the parameter at fault: a message begins with its name, or is about the messages."""
    name = re.match(r"\w*", complaint)
    return (
        name[0]
        if name and name[0] in ("template_kwargs", "tools", "continue_final_message", "chat_template")
        else "messages"
    )


def _for_template(message: ChatMessage) -> dict[str, Any]:
    """Return a turn as templates know it, with the arguments of its calls as data if they are JSON objects."""
    turn = {
        field: value
        for field, value in msgspec.structs.asdict(message).items()
        if value is not None and field not in ("tool_calls", "parts")
    }
    if message.parts:
        turn["content"] = marked([part if isinstance(part, str) else _medium(part) for part in message.parts])
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _data(call)}}
            for call in message.tool_calls
        ]
    return turn


def _medium(part: ImagePart | VideoPart) -> Medium:
    return Medium.VIDEO if isinstance(part, VideoPart) else Medium.IMAGE


def _data(call: ToolCall) -> Any:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return call.arguments
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else call.arguments
