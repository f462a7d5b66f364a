"""scheduler ──TokenBatch──▶ detokenizer ──Stopped──▶ scheduler: token ids become text.

The scheduler names requests by `serial`, a number that it never uses twice within its incarnation. It sends
one batch per step, which opens requests, brings tokens, and ends requests, in this order. The detokenizer
ends a request at a stop string and answers with `Stopped`; it drops later tokens of that request. A scheduler
opens all of its requests again, with their whole output, at a new detokenizer.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.message import Message
from pageant.protocol.serving import Finished, WeightVersionSpans
from pageant.protocol.streams import Numbered


class OpenOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request whose tokens will come."""

    serial: int
    """The scheduler's number of the request."""
    request_id: str
    """The frontend's name of the request."""
    frontend: str
    """The address of the frontend that gets the text."""
    prompt_tail: Int32Vector
    """int32 [tokens]: the end of the prompt, as context for decoding."""
    stop: tuple[str, ...] = ()
    """Stop strings."""
    min_tokens: int = 0
    """Stop strings do not end the request before this many tokens."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    token_ids: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [tokens]: output that the frontend had before this scheduler knew the request."""
    trace: str | None = None
    """See `Submit`."""


class RowFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a request, known when it was admitted (again) and with its first token.

    For the seconds see `Finished`.
    """

    num_cached_tokens: int
    num_preemptions: int
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    weight_versions: WeightVersionSpans = ()


class TokenBatch(Numbered, frozen=True, kw_only=True):
    """One step's tokens, by columns over its N rows."""

    opened: tuple[OpenOutput, ...]
    """Requests that begin."""
    serials: Int64Vector
    """int64 [N]: the request of each row."""
    counts: Int32Vector
    """int32 [N]: the number of new tokens of each row."""
    token_ids: Int32Vector
    """int32 [sum of counts]: the new tokens, row by row."""
    finished: dict[int, Finished]
    """Requests that end, by row index."""
    facts: dict[int, RowFacts]
    """Facts that became known, by row index."""
    logprobs: Logprobs | None = None
    """Log-probabilities of the tokens; see `OutputBatch`."""
    prompt_logprobs: Logprobs | None = None
    """Log-probabilities of prompts' tokens; see `OutputBatch`."""


class Stopped(Message, frozen=True, kw_only=True):
    """Requests that ended at a stop string."""

    serials: Int64Vector
    """int64 [N]."""
    num_output_tokens: Int32Vector
    """int32 [N]: the number of output tokens that count for each."""
    incarnation: int = 0
    """The life of the scheduler that uses these serials; 0 does not say."""
