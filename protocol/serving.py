"""frontend ──Submit / Abort──▶ scheduler; detokenizer ──OutputBatch──▶ frontend.

Every submitted request ends with exactly one `Finished`, which the detokenizer sends. Requests are named by
the frontend, `request_id`, uniquely among all of its lives.

A frontend knows what it has of each open request. When a scheduler or a detokenizer starts again, it submits
them all once more, with a `Resumption`: a scheduler that has the request passes that over, one that does not
takes it up. What comes then of a request's output may begin before what its frontend has; it carries its
position, and the frontend drops what it had.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.message import Message
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.streams import Numbered
from pageant.protocol.thinking import Thinking

FinishReason = Literal["stop", "length", "abort", "error"]


EndCause = Literal["request", "overload", "deadline", "failure"]


class Resumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an open request has behind it, for a scheduler that does not know it.

    `token_ids` are its output so far; their log-probabilities stay with the frontend, which has them. `age` is
    how long ago it was first submitted, in seconds: its place in the queue. `detokenizer` is the latest incarnation of
    that which its frontend knows of: of what a former one was told, the frontend may never hear.
    """

    token_ids: Int32Vector
    age: float
    detokenizer: int = 0


class Submit(Message, frozen=True, kw_only=True):
    """Serve this request. `params.seed` is drawn by now unless it is greedy, and `prompt_token_ids` are valid ids.

    `frontend` is where its outputs go. `priority` (lower is sooner), `tenant` and `deadline` (seconds from
    now, after which it is aborted) are for the policy and the queue. Prefixes are shared only with requests
    of the same `cache_salt` and `extra_keys` (see `Admission`). Samples of one prompt and seed differ by their
    `sample`. `bad_words` are those of `params`, as token ids. With `resume` it goes on from there: it has passed
    admission, its output is output, and what its tenant has been given for it counts. With `trace` (a
    `traceparent`) the observer is told of its steps. It is computed with the executor's `adapter` of that name. With
    `thinking` its thoughts are bounded (see `SamplingParams.thinking_token_budget`).
    """

    request_id: str
    frontend: str
    prompt_token_ids: Int32Vector
    params: SamplingParams
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None
    cache_salt: str | None = None
    sample: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    resume: Resumption | None = None
    trace: str | None = None
    extra_keys: tuple[str, ...] = ()
    adapter: str | None = None
    thinking: Thinking | None = None


class Abort(Message, frozen=True, kw_only=True):
    """End these requests of `frontend` now. Unknown ones have ended already, and are passed over."""

    frontend: str
    request_ids: tuple[str, ...]


class Finished(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a request ended.

    `stop_reason` is the stop string or token id that ended it, None for the model's own end token.
    `message` explains an error or an abort that nobody asked for, and `cause` says whose it is: of a `request`
    that cannot be served, of an `overload` (it may be sent again later), of a `deadline` that passed, or of
    a `failure` here. `num_output_tokens` counts the tokens that belong to the output. It waited
    `queue_seconds`, had its first token `prefill_seconds` after that, and its last `decode_seconds` later;
    preemptions count as part of what they interrupt. What did not happen took no time.
    """

    reason: FinishReason
    stop_reason: str | int | None = None
    message: str | None = None
    cause: EndCause | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class OutputBatch(Numbered, frozen=True, kw_only=True):
    """What one step brought to one frontend, by columns.

    Row i is `request_ids[i]`, with the text `texts[i]` and the next `counts[i]` of `token_ids`: from the
    `text_starts[i]`-th character and the `token_starts[i]`-th token of its output on. `finished` maps a row's
    index to how its request ended. `logprobs` are of the rows' tokens, for the requests that ask;
    `prompt_logprobs` of their prompts' tokens but the first, all with a request's first row. `token_texts` are
    the tokens named there, each by itself; `token_bytes` are the bytes of those that are no characters by themselves.
    """

    request_ids: tuple[str, ...]
    texts: tuple[str, ...]
    text_starts: Int32Vector
    token_starts: Int32Vector
    counts: Int32Vector
    token_ids: Int32Vector
    finished: dict[int, Finished]
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    token_texts: dict[int, str] = msgspec.field(default_factory=dict)
    token_bytes: dict[int, bytes] = msgspec.field(default_factory=dict)
