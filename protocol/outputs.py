"""scheduler ──TokenBatch──▶ detokenizer ──Stopped──▶ scheduler: ids become text.

The scheduler names requests by `serial`, a number that is never used twice within its incarnation. One
batch goes out per step; it opens requests, brings tokens, and ends requests, in this order. A request that
the detokenizer ended itself, at a stop string, comes back as `Stopped`; what the scheduler still sends of
it is dropped. A new detokenizer is told of every open request again, with its whole output.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.message import Message
from pageant.protocol.serving import Finished
from pageant.protocol.streams import Numbered


class OpenOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request whose tokens will come. `prompt_tail` is the end of its prompt, for the text's context.

    `token_ids` are output that its frontend had before this scheduler knew the request. For `trace` see `Submit`.
    """

    serial: int
    request_id: str
    frontend: str
    prompt_tail: Int32Vector
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    token_ids: Int32Vector = msgspec.field(default_factory=int32)
    trace: str | None = None


class RowFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became known of a request when it was admitted (again), and with its first token.

    For the seconds see `Finished`.
    """

    num_cached_tokens: int
    num_preemptions: int
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0


class TokenBatch(Numbered, frozen=True, kw_only=True):
    """One step's tokens: row i is the request `serials[i]` with the next `counts[i]` of `token_ids`.

    `finished` and `facts` are by row index, for the rows that have any; so are the log-probabilities (see
    `OutputBatch`).
    """

    opened: tuple[OpenOutput, ...]
    serials: Int64Vector
    counts: Int32Vector
    token_ids: Int32Vector
    finished: dict[int, Finished]
    facts: dict[int, RowFacts]
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None


class Stopped(Message, frozen=True, kw_only=True):
    """Requests that ended at a stop string, with the number of output tokens that count for each."""

    serials: Int64Vector
    num_output_tokens: Int32Vector
    incarnation: int = 0
    """Of the scheduler that knows them by these serials; 0 does not say."""
