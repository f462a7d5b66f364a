"""frontend ──Tokenize | TokenizeChat──▶ tokenizer: prompts to token ids, asked at the edge, before a
request is submitted. The answer is `Tokenized`, or `NotTokenized` when the prompt itself is at fault.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.message import Message, Request


class Tokenized(Message, frozen=True, kw_only=True):
    """The prompt's token ids, and its text as the model sees it."""

    token_ids: Int32Vector
    text: str


class NotTokenized(Message, frozen=True, kw_only=True):
    """The prompt cannot be tokenized; `reason` says what was found and what is expected."""

    reason: str
    parameter: str | None = None


class Tokenize(Request[Tokenized | NotTokenized], frozen=True, kw_only=True):
    """Turn a text into token ids, adding the special tokens that the checkpoint asks for.

    One that must have more than `tokens_max` of them, by how long the longest token is, is refused unread.
    """

    text: str
    add_special_tokens: bool = True
    tokens_max: int | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model asked to be called. `arguments` is JSON, as the model wrote it."""

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


class TokenizeChat(Request[Tokenized | NotTokenized], frozen=True, kw_only=True):
    """Render a conversation through the checkpoint's own chat template, then turn it into token ids.

    `tools` (a list) and `template_kwargs` (an object: further variables of the template) are JSON, since only
    the template knows what they hold. `tokens_max` is as in `Tokenize`. `chat_template` is a template of the
    request's own, instead of the checkpoint's.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: str | None = None
    template_kwargs: str | None = None
    add_special_tokens: bool = False
    tokens_max: int | None = None
    chat_template: str | None = None


class Detokenized(Message, frozen=True, kw_only=True):
    """The texts of some outputs."""

    texts: tuple[str, ...]


class Detokenize(Request[Detokenized], frozen=True, kw_only=True):
    """Turn whole outputs into text: `counts[i]` of `token_ids` are the i-th's.

    With `pieces`, each output is instead its tokens as the vocabulary spells them (`Ġhello`), joined.
    """

    counts: Int32Vector
    token_ids: Int32Vector
    skip_special_tokens: bool = True
    pieces: bool = False
