"""session ──GetServer / GetHttpStatistics / Drain──▶ http ◀──UseResponse / FollowResponse / AbortNamed──▶ http.

The session that started a server asks the first three. Servers of one engine ask each other the last three,
because a client may come to any server with a response that it began at another.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.encoding import ImageInputs
from pageant.protocol.hearing import AudioInputs
from pageant.protocol.message import Message, Request
from pageant.protocol.pooling import PooledModel

GenerationValue = bool | int | float | str | None | list[int]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, as its frontends know it.

    Attributes:
        name: its name for clients.
        replica: the prefix of its actors' names.
        folder: the folder of its checkpoint.
        max_logprobs, generation_config: see `Engine`.
        adapters: the names of its adapters, which are models too for clients.
        tokenizer: the folder of its tokenizer; None is a model that is served without one.
        chat_template: the Jinja template of conversations, where it is not the tokenizer's own.
        eos_token_ids: its end tokens.
        aliases: further names that clients may use, such as the path as it was typed.
        generation_overrides: laid over the checkpoint's generation_config.json.
        embeds_size: of the embeddings that its prompts may be; None is a model that takes none.
        generates: it generates text.
        pooled: what it makes of texts otherwise; None is nothing.
        images: the images that it takes; None is none.
        audio: the sounds that it takes, and nothing but these; None is none.
        is_replicated: its actors are those of replicas, with a prefix of their own each.
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
    embeds_size: int | None = None
    generates: bool = True
    pooled: PooledModel | None = None
    is_replicated: bool = False
    images: ImageInputs | None = None
    audio: AudioInputs | None = None


class ServerAddress(Message, frozen=True, kw_only=True):
    """The URL of a server, and the models that it serves."""

    url: str
    models: tuple[str, ...]


class GetServer(Request[ServerAddress], frozen=True, kw_only=True):
    """Ask a server for its address."""


class HttpStatistics(Message, frozen=True, kw_only=True):
    """A server's counters.

    For a server alone in its process, its node's `cpu_seconds` divided by `streamed_tokens` is the cost of a
    streamed token.
    """

    open_requests: int
    streamed_tokens: int


class GetHttpStatistics(Request[HttpStatistics], frozen=True, kw_only=True):
    """Ask a server for its counters."""


class Drained(Message, frozen=True, kw_only=True):
    """The number of requests that were still open when the time was over."""

    open_requests: int


class Drain(Request[Drained], frozen=True, kw_only=True):
    """Ask a server to take no more requests, and to let the open ones end."""

    seconds: float
    """The longest time to wait for open requests."""


class UsedResponse(Message, frozen=True, kw_only=True):
    """A stored response as it is now."""

    response: str | None = None
    """The response as JSON; None if it is not stored there."""
    turns: str = "[]"
    """The conversation up to the response's end, as JSON."""
    running: bool = False
    """The response has not ended yet."""
    background: bool = False
    """No connection waits for the response, so that it can be cancelled."""
    has_events: bool = False
    """The events of the response can be followed."""
    items: str = "[]"
    """The items that the response was made from, as JSON."""


class UseResponse(Request[UsedResponse], frozen=True, kw_only=True):
    """Show a stored response, or end it, or forget it."""

    name: str
    """The id of the response."""
    use: Literal["show", "cancel", "delete"] = "show"
    """What to do with it."""
    tenant: str | None = None
    """The tenant who must own the response, unless `is_operator`."""
    is_operator: bool = True
    """An operator may use any tenant's response."""


class ResponseEvents(Message, frozen=True, kw_only=True):
    """The next events of a response, as they are sent to a client."""

    events: str


class FollowResponse(Request[ResponseEvents], frozen=True, kw_only=True):
    """Stream a stored response's events, as they come.

    A response of another tenant has no events; see `UseResponse`.
    """

    name: str
    """The id of the response."""
    after: int = -1
    """Send events with sequence numbers above this one."""
    tenant: str | None = None
    is_operator: bool = True


class AbortedNamed(Message, frozen=True, kw_only=True):
    """Names of the requests that were running."""

    names: tuple[str, ...]


class AbortNamed(Request[AbortedNamed], frozen=True, kw_only=True):
    """End requests by the names that clients know: those of `tenant`, or, for an operator, of any tenant."""

    names: tuple[str, ...]
    tenant: str | None = None
    is_operator: bool = True
