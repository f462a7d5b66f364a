"""Messages that share requests out over the replicas of a model.

    frontend ──Route──▶ router ──Routed──▶ frontend          where each request had best be submitted
    scheduler ──Load──▶ router                               when it changed, at most every 50 ms
    router ──FollowBlocks──▶ blocks of each replica          which prefixes are cached where
    router ──MoveRequests──▶ frontend                        where a replica lacks memory that another has

The router advises. Requests and tokens do not pass it, and a frontend that gets no answer chooses by its own counts.
A decision is a ticket: the router charges the replica with the request until a `Load` of it has the ticket, for the
work is in the replica's own numbers from then on.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector
from pageant.protocol.message import Message, Request

LOAD_SECONDS = 0.05
"""The least time between two `Load`s of a scheduler."""


class Load(Message, frozen=True, kw_only=True):
    """The work of one replica, as its scheduler has it now."""

    seen: Int64Vector
    """int64 [T]: tickets of the requests that came since the last of these messages."""
    waiting_tokens: int
    """Tokens that are to be computed before the requests that are open each have their next token."""
    running: int
    """Requests that hold memory."""
    waiting: int
    """Requests that hold none."""
    seconds_per_token: float
    """Seconds that a token more in a step takes; 0 while that is not known."""
    output_tokens: float = 0.0
    """Mean tokens of the outputs that ended lately; 0 while none has."""
    memory: float = 0.0
    """Share of KV memory that its requests hold, or wait for: above 1 where there is not enough."""
    memory_tokens: int = 0
    """Tokens that its KV memory holds; 0 while that is not known."""


class Routed(Message, frozen=True, kw_only=True):
    """Advice on N requests."""

    places: tuple[str, ...]
    """N prefixes of replicas; "" where none takes requests."""
    tickets: Int64Vector
    """int64 [N]: for `Submit.ticket`."""
    expected_tokens: Int32Vector
    """int32 [N]: for `Submit.expected_tokens`."""
    via: tuple[str, ...] = ()
    """N prefixes of replicas that compute the prompts first, and hand the requests over to `places`; "" for those that
    begin there at once. Empty where none is handed over.
    """


class Route(Request[Routed], frozen=True, kw_only=True):
    """Ask where N requests had best be submitted. Columns over the requests."""

    model: str
    """The prefix of the model."""
    token_ids: Int32Vector
    """int32 [sum of lengths]: the tokens of the prompts, one after another."""
    lengths: Int32Vector
    """int32 [N]: the tokens of each prompt."""
    max_tokens: Int32Vector
    """int32 [N]: the most tokens of all outputs of each request; 0 sets no bound."""
    salts: tuple[str | None, ...]
    extra_keys: tuple[tuple[str, ...], ...]
    adapters: tuple[str | None, ...]
    """As in `Submit`: they are part of the names of blocks."""
    tenants: tuple[str, ...]
    text_tokens: Int32Vector
    """int32 [N]: the tokens before the first embedding of each prompt; all of them where it has none.

    Block managers alone know the names of later blocks.
    """


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replica as the router sees it."""

    waiting_tokens: int
    """As in `Load`, with the requests that are on their way."""
    running: int
    waiting: int
    seconds_per_token: float
    blocks: int
    """Names of blocks that it has cached."""
    takes_requests: bool
    requests: int
    """Requests that were sent there."""


class RouterStatistics(Message, frozen=True, kw_only=True):
    """Counters of the router since its start, and the replicas by their prefixes."""

    decisions: int
    seconds: float
    """Time that the decisions took."""
    tokens: int
    """Tokens of the prompts that were routed."""
    hit_tokens: int
    """Tokens of these that the chosen replicas had, or were about to compute."""
    policy_failures: int
    """Decisions that the policy did not make: it failed, or named no replica that takes requests."""
    replicas: dict[str, ReplicaLoad]
    moved: int = 0
    """Sequences that changed their replica because it lacked memory."""


class GetRouterStatistics(Request[RouterStatistics], frozen=True, kw_only=True):
    """Ask the router for its counters."""
