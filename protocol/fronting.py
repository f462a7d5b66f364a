"""session ──GetServer / GetHttpStatistics / Drain──▶ http ◀──UseResponse / FollowResponse / AbortNamed──▶ http.

What whoever started a server asks of it; and what servers of one engine ask each other, because a client may come
to any of them with what it began at another.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.message import Message, Request

GenerationValue = bool | int | float | str | None | list[int]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, as those know it who speak for its users.

    Attributes:
        name: what it is called outside.
        replica: what stands before its actors' names.
        folder: its checkpoint's.
        max_logprobs, generation_config: see `Engine`.
        adapters: the names of its adapters, which are models too to its users.
        tokenizer: the folder of its tokenizer; None is a model that is served without one.
        chat_template: the Jinja template of conversations, where it is not the tokenizer's own.
        eos_token_ids: its end tokens.
        aliases: further names that clients may call it by, such as its path as it was typed.
        generation_overrides: laid over the checkpoint's generation_config.json.
    """

    name: str
    replica: str
    folder: str
    vocab_size: int
    max_model_len: int
    max_logprobs: int
    generation_config: str
    adapters: tuple[str, ...] = ()
    tokenizer: str | None = None
    chat_template: str | None = None
    aliases: tuple[str, ...] = ()
    generation_overrides: dict[str, GenerationValue] = msgspec.field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


class ServerAddress(Message, frozen=True, kw_only=True):
    """Where a server is found, and what it serves."""

    url: str
    models: tuple[str, ...]


class GetServer(Request[ServerAddress], frozen=True, kw_only=True):
    """Where do you listen?"""


class HttpStatistics(Message, frozen=True, kw_only=True):
    """A server's counters. Alone in its process, its node's `cpu_seconds` divided by `streamed_tokens` is what a
    streamed token costs.
    """

    open_requests: int
    streamed_tokens: int


class GetHttpStatistics(Request[HttpStatistics], frozen=True, kw_only=True):
    """How do you stand?"""


class Drained(Message, frozen=True, kw_only=True):
    """So many requests were still open when the time was over."""

    open_requests: int


class Drain(Request[Drained], frozen=True, kw_only=True):
    """Take no more requests, and let those that are open end, within so many seconds."""

    seconds: float


class UsedResponse(Message, frozen=True, kw_only=True):
    """A stored response as it is now, and the conversation up to its end, both as JSON; None if it is not stored
    there. `running`: it has not ended yet. `background`: no connection waits for it, so that it can be cancelled.
    `has_events`: they can be followed. `items`: what it was made from, as JSON.
    """

    response: str | None = None
    turns: str = "[]"
    running: bool = False
    background: bool = False
    has_events: bool = False
    items: str = "[]"


class UseResponse(Request[UsedResponse], frozen=True, kw_only=True):
    """Show a stored response, or end it, or forget it.

    `tenant` is whose it has to be; an operator (`is_operator`) uses anybody's.
    """

    name: str
    use: Literal["show", "cancel", "delete"] = "show"
    tenant: str | None = None
    is_operator: bool = True


class ResponseEvents(Message, frozen=True, kw_only=True):
    """The next events of a response, as they are sent to a client."""

    events: str


class FollowResponse(Request[ResponseEvents], frozen=True, kw_only=True):
    """Send a stored response's events after the one of that number, as they come. For whose it has to be, see
    `UseResponse`; nothing comes of any other's.
    """

    name: str
    after: int = -1
    tenant: str | None = None
    is_operator: bool = True


class AbortedNamed(Message, frozen=True, kw_only=True):
    """Those that were running."""

    names: tuple[str, ...]


class AbortNamed(Request[AbortedNamed], frozen=True, kw_only=True):
    """End requests, by the names that clients know: those of `tenant`, or, for an operator, of anybody."""

    names: tuple[str, ...]
    tenant: str | None = None
    is_operator: bool = True
