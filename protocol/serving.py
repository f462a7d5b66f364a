"""frontend ──Submit / Abort──▶ scheduler; detokenizer ──OutputBatch──▶ frontend.

Every submitted request ends with exactly one `Finished`, which the detokenizer sends. The frontend names
requests by `request_id`, which is unique among all of its lives.

A frontend knows the output so far of each open request. When a scheduler or a detokenizer starts again, the
frontend submits all open requests once more, with a `Resumption`. A scheduler that has the request ignores
it; one that does not takes the request up. Output that comes afterwards may begin before what the frontend
has. It carries its position, and the frontend drops what it had.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.arrays import Float32Matrix, Int32Vector
from pageant.protocol.embedding import PromptEmbeds
from pageant.protocol.hearing import SpeechRules
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.message import Message
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.streams import Numbered
from pageant.protocol.thinking import Thinking

FinishReason = Literal["stop", "length", "abort", "error"]


EndCause = Literal["request", "overload", "deadline", "failure", "moved"]


class WeightVersionSpan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Output tokens from `start` on, up to the next span's, were drawn by weights of this version."""

    version: str
    start: int


WeightVersionSpans = tuple[WeightVersionSpan, ...]
"""The weights that all tokens of an output were drawn by: several, where they were replaced meanwhile."""


def spans_within(spans: WeightVersionSpans, num_tokens: int) -> WeightVersionSpans:
    """Return those spans that have a token among the first `num_tokens`."""
    return tuple(span for span in spans if span.start < num_tokens)


class Resumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The past of an open request, for a scheduler that does not know it."""

    token_ids: Int32Vector
    """int32 [tokens]: the output so far. Its log-probabilities stay with the frontend."""
    age: float
    """Seconds since it was first submitted; decides its place in the queue."""
    detokenizer: int = 0
    """The latest incarnation of the detokenizer that the frontend knows. Output that an earlier one received
    may never reach the frontend.
    """
    weight_versions: WeightVersionSpans = ()
    """Of these tokens."""
    deaths: int = 0
    """Deaths of other replicas' executors that the request is suspected of."""
    died_at: int = 0
    """The position up to which it was computed at the last of them."""


class Submit(Message, frozen=True, kw_only=True):
    """Serve a request."""

    request_id: str
    """The frontend's name of the request."""
    frontend: str
    """The address that outputs go to."""
    prompt_token_ids: Int32Vector
    """int32 [tokens]: valid ids, at least one."""
    params: SamplingParams
    """Sampling parameters. `params.seed` is set unless the request is greedy."""
    priority: int = 0
    """For the policy; a lower number is sooner."""
    tenant: str = ""
    """For the policy and for fairness between tenants."""
    deadline: float | None = None
    """Seconds from now after which the request is aborted; None sets no bound."""
    cache_salt: str | None = None
    """Prefixes are shared only between requests of the same salt (see `Admission`)."""
    sample: int = 0
    """The number of this sample of its prompt. Samples of one seed differ by it."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The `bad_words` of `params`, as token ids."""
    resume: Resumption | None = None
    """The output that a resumed request has. Such a request has passed admission control, and its tokens
    count for its tenant.
    """
    trace: str | None = None
    """A W3C `traceparent`: the observer is told of the request's steps."""
    extra_keys: tuple[str, ...] = ()
    """Prefixes are shared only between requests of the same keys (see `Admission`)."""
    adapter: str | None = None
    """The executor's adapter that computes the request."""
    thinking: Thinking | None = None
    is_probe: bool = False
    """The request asks whether the step loop is alive: it is no use of the model."""
    """The marks of bounded reasoning (see `SamplingParams.thinking_token_budget`)."""
    prompt_embeds: PromptEmbeds | None = None
    """Embeddings that stand in for the prompt's tokens, or for some, whose ids are placeholders then."""
    pooling: PoolingParams | None = None
    """The prompt's hidden states are pooled, and nothing is sampled. `params` then mean nothing."""
    ticket: int = 0
    """The router's decision that sent the request here; 0 is none."""
    expected_tokens: int | None = None
    """Tokens of the prompt that the router expects to be computed rather than cached."""
    handover: bool = False
    """End the request after its first token, with the cause `moved`: it goes on at another replica."""
    speech: SpeechRules | None = None
    """Rules of a text that is heard."""


class Abort(Message, frozen=True, kw_only=True):
    """End these requests of `frontend` now. Unknown ones have ended already and are ignored."""

    frontend: str
    request_ids: tuple[str, ...]


class Finished(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a request. Times of a preemption count towards the phase that it interrupts; a phase that
    did not happen took no time.
    """

    reason: FinishReason
    """The finish reason that clients see."""
    stop_reason: str | int | None = None
    """The stop string or token id that ended it; None for the model's own end token."""
    message: str | None = None
    """Explains an error, or an abort that the client did not ask for."""
    cause: EndCause | None = None
    """Who is at fault: a `request` that cannot be served, an `overload` (it may be sent again later), a
    `deadline` that passed, or a `failure` of the engine. One that has `moved` goes on elsewhere, and its frontend
    ignores this end.
    """
    num_output_tokens: int = 0
    """Tokens that belong to the output."""
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache."""
    num_preemptions: int = 0
    """How often it was preempted."""
    queue_seconds: float = 0.0
    """Time from submission to admission."""
    prefill_seconds: float = 0.0
    """Time from admission to the first token."""
    decode_seconds: float = 0.0
    """Time from the first token to the last."""
    weight_versions: WeightVersionSpans = ()
    """Of its output tokens."""
    pooled: Float32Matrix | None = None
    """float32 [vectors, width]: the result of a request that is pooled."""


class OutputBatch(Numbered, frozen=True, kw_only=True):
    """One step's output for one frontend, by columns over its N rows."""

    request_ids: tuple[str, ...]
    """The request of each row; N of them."""
    texts: tuple[str, ...]
    """The new text of each row; N of them."""
    text_starts: Int32Vector
    """int32 [N]: the index of each text's first character in its request's whole output."""
    token_starts: Int32Vector
    """int32 [N]: the index of each row's first token in its request's whole output."""
    counts: Int32Vector
    """int32 [N]: the number of new tokens of each row."""
    token_ids: Int32Vector
    """int32 [sum of counts]: the new tokens, row by row."""
    finished: dict[int, Finished]
    """Requests that ended, by row index."""
    logprobs: Logprobs | None = None
    """Log-probabilities of the rows' tokens, for the requests that ask."""
    prompt_logprobs: Logprobs | None = None
    """Log-probabilities of all prompt tokens but the first, with a request's first row."""
    token_texts: dict[int, str] = msgspec.field(default_factory=dict)
    """The text of each token that the log-probabilities name, decoded by itself."""
    token_bytes: dict[int, bytes] = msgspec.field(default_factory=dict)
    """The bytes of those tokens that are no whole characters."""
    weight_versions: dict[int, WeightVersionSpans] = msgspec.field(default_factory=dict)
    """By row index, for those whose tokens were drawn by other weights than the row before of that request: all spans
    of the request so far."""
