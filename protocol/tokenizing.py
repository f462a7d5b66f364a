"""frontend ──Tokenize | TokenizeChat──▶ tokenizer: prompts to token ids, before a request is submitted.

The answer is `Tokenized`, or `NotTokenized` when the prompt itself is at fault.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.encoding import ImagePart, VideoPart
from pageant.protocol.message import Message, Request


class Tokenized(Message, frozen=True, kw_only=True):
    """The prompt's token ids, int32 [tokens], and its text as the model sees it."""

    token_ids: Int32Vector
    text: str
    second_segment: int | None = None
    """The position of the first token of a pair's second text, where the tokenizer tells the two apart."""


class NotTokenized(Message, frozen=True, kw_only=True):
    """The prompt cannot be tokenized."""

    reason: str
    """What was found and what is expected."""
    parameter: str | None = None
    """The parameter at fault."""


class Tokenize(Request[Tokenized | NotTokenized], frozen=True, kw_only=True):
    """Turn a text into token ids, with the special tokens that the checkpoint asks for."""

    text: str
    add_special_tokens: bool = True
    tokens_max: int | None = None
    """Refuse, without tokenizing it, a text that must have more tokens: the longest token bounds their
    number.
    """
    pair: str | None = None
    """A second text, which the tokenizer puts behind the first as the model was trained to see it."""
    truncate_to: int | None = None
    """Cut the text to this many tokens, special ones included: the longer of two first. A text far beyond it is cut
    before it is tokenized.
    """
    truncation_side: Literal["left", "right"] = "right"
    """The end that is cut off."""
    pair_tokens_max: int | None = None
    """Cut the second text to this many tokens."""
    placeholder: int | None = None
    """The token that stands for an image in the text."""
    around: str = ""
    """Put this before and behind each placeholder of an image."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call that the model wrote. `arguments` is JSON, as the model wrote it."""

    name: str
    arguments: str
    id: str = ""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation. `tool_call_id` is the call that a tool's turn answers."""

    role: str
    content: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    parts: tuple[str | ImagePart | VideoPart, ...] = ()
    """Texts, images and videos, in order, of a turn that has such; `content` then has its texts alone."""


class TokenizeChat(Request[Tokenized | NotTokenized], frozen=True, kw_only=True):
    """Render a conversation with the checkpoint's chat template, then turn it into token ids."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: str | None = None
    """A JSON list. Only the template knows what it holds."""
    template_kwargs: str | None = None
    """A JSON object: further variables of the template."""
    add_special_tokens: bool = False
    tokens_max: int | None = None
    """See `Tokenize`."""
    chat_template: str | None = None
    """A template of the request's own, instead of the checkpoint's."""
    placeholder: int | None = None
    """The token that stands for an image. None where messages have neither images nor videos."""
    video_placeholder: int | None = None
    """The token that stands for a video. None where the model takes none."""
    around: str = ""
    """See `Tokenize`."""


class Detokenized(Message, frozen=True, kw_only=True):
    """The text of each output."""

    texts: tuple[str, ...]


class Detokenize(Request[Detokenized], frozen=True, kw_only=True):
    """Turn whole outputs into text."""

    counts: Int32Vector
    """int32 [N]: the number of tokens of each output."""
    token_ids: Int32Vector
    """int32 [sum of counts]: the tokens, output by output."""
    skip_special_tokens: bool = True
    pieces: bool = False
    """Return instead the tokens of each output as the vocabulary spells them (`Ġhello`), joined."""
