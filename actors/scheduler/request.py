"""A request as the scheduler sees it: its tokens, its parameters and its state."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pageant.protocol.embedding import EmbeddedRows, PromptEmbeds, uncut
from pageant.protocol.hearing import SpeechRules
from pageant.protocol.logprobs import RowLogprobs
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Submit, WeightVersionSpan, WeightVersionSpans, spans_within
from pageant.protocol.thinking import Thinking


class State(enum.Enum):
    """State of a request. Only RUNNING ones hold blocks and a row of the batch."""

    # The request was never admitted, or was preempted.
    WAITING = "waiting"
    # The block manager has been asked to admit it.
    ASKED = "asked"
    RUNNING = "running"
    ENDED = "ended"


def ends_by_token(params: SamplingParams) -> bool:
    """Tell whether a request ends at the model's end tokens. A grammar allows those only where it is complete."""
    return not params.ignore_eos or params.structured_outputs is not None


Key = tuple[float, ...]


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """A request of the scheduler.

    An ended request keeps its row and blocks while steps name them: no other request may have them before those
    steps are over. State that changes with every step is kept by row (see `running`).
    """

    request_id: str
    frontend: str
    serial: int
    """The number of the request, which never comes twice."""
    arrival: int
    """The order in which it came to this scheduler."""
    prompt: npt.NDArray[np.int32]
    """int32 [tokens]."""
    params: SamplingParams
    end_tokens: frozenset[int]
    """Tokens of the model that end it."""
    salt: str | None = None
    """The salt of its prefix's hashes."""
    extra_keys: tuple[str, ...] = ()
    """Further parts of its prefix's hashes."""
    tenant: str = ""
    priority: int = 0
    arrived_at: float = 0.0
    """Seconds of the scheduler's clock at which it first came, perhaps to a former scheduler."""
    deadline: float = math.inf
    """Seconds of the scheduler's clock; infinite if it has none."""
    is_long: bool = False
    """Its prompt is computed in chunks, beside few others like it."""
    max_total: int = 0
    """Tokens, prompt included, at which it ends by length."""
    key: Key = ()
    """The policy's order, asked for once so that it is total, and the serial, which breaks ties."""
    output: list[int] = field(default_factory=list)
    """Output tokens so far."""
    is_resumed: bool = False
    """Another scheduler had it before."""
    num_resumed: int = 0
    """Output tokens that it brought along."""
    logprobs: list[RowLogprobs] = field(default_factory=list)
    """Log-probabilities of the output after the resumed tokens, if it asks for them."""
    prompt_logprobs: list[RowLogprobs] = field(default_factory=list)
    num_sent: int = 0
    """Output tokens that were sent to the detokenizer, where they are sent several at a time."""
    state: State = State.WAITING
    row: int | None = None
    """Its row of the batch, while it holds one."""
    num_computed: int = 0
    """Tokens with KV. Set only when a policy chooses a victim."""
    num_cached: int = 0
    """Prompt tokens that were cached at the first admission."""
    sample: int = 0
    """Its number among the samples of one prompt and seed."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_scored: int = 0
    """Prompt tokens whose log-probabilities have come, or are not asked for."""
    admitted_at: float | None = None
    """Seconds of the scheduler's clock at the first admission."""
    first_token_at: float | None = None
    """Seconds of the scheduler's clock at the first token."""
    num_preemptions: int = 0
    deaths: int = 0
    """Deaths of executors that were computing it; see `recovery`."""
    died_at: int = 0
    """The position up to which it was computed at the last such death, unknown tokens included."""
    trace: str | None = None
    adapter: str | None = None
    weight_versions: WeightVersionSpans = ()
    """The versions of the weights that drew its output, each with the output index at which it begins."""
    thinking: Thinking | None = None
    speech: SpeechRules | None = None
    is_probe: bool = False
    """It only probes whether the engine answers."""
    prompt_embeds: PromptEmbeds | None = None
    """Kept to its end: the prompt may have to be computed again."""
    pooling: PoolingParams | None = None
    """Its hidden states are pooled, and nothing is sampled."""
    expected_tokens: int | None = None
    """Tokens of its prompt that are probably not cached; None where nobody has said."""
    hands_over: bool = False
    """It goes on elsewhere when it has its first token."""

    @classmethod
    def of(cls, message: Submit, serial: int, end_tokens: frozenset[int], now: float) -> ScheduledRequest:
        """Return a request as it comes at `now` seconds: a new one, or one of a scheduler that died."""
        request = cls(
            request_id=message.request_id,
            frontend=message.frontend,
            serial=serial,
            arrival=serial,
            prompt=message.prompt_token_ids,
            params=message.params,
            end_tokens=end_tokens if ends_by_token(message.params) else frozenset(),
            salt=message.cache_salt,
            extra_keys=message.extra_keys,
            tenant=message.tenant,
            priority=message.priority,
            arrived_at=now,
            deadline=math.inf if message.deadline is None else now + message.deadline,
            sample=message.sample,
            bad_words=message.bad_words,
            trace=message.trace,
            adapter=message.adapter,
            thinking=message.thinking,
            speech=message.speech,
            is_probe=message.is_probe,
            prompt_embeds=message.prompt_embeds,
            pooling=message.pooling,
            expected_tokens=message.expected_tokens,
            hands_over=message.handover,
        )
        behind = message.resume
        if behind is not None:
            request.arrived_at = now - behind.age
            request.output = behind.token_ids.tolist()
            request.is_resumed = True
            request.num_resumed = request.num_sent = len(request.output)
            request.weight_versions = behind.weight_versions
            request.deaths, request.died_at = behind.deaths, behind.died_at
            # The prompt's log-probabilities came with the first token.
            if request.output:
                request.num_scored = max(0, len(request.prompt) - 1)
        return request

    @property
    def was_admitted(self) -> bool:
        """Tell whether it was admitted before, by this scheduler or another. Its tenant was then charged for
        the prompt.
        """
        return self.admitted_at is not None or self.num_resumed > 0

    def draw_with(self, version: str) -> None:
        """Note that its next tokens are drawn by weights of this version."""
        spans, start = self.weight_versions, len(self.output)
        if not spans or spans[-1].version != version:
            span = WeightVersionSpan(version=version, start=start)
            self.weight_versions = (*spans_within(spans, start), span)

    @property
    def num_expected(self) -> int:
        """Return the known tokens that are probably not cached."""
        expected = len(self.prompt) if self.expected_tokens is None else self.expected_tokens
        return expected + len(self.output)

    @property
    def num_tokens(self) -> int:
        """Return the number of known tokens: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def held_row(self) -> int:
        """Return the row of a request that holds one."""
        assert self.row is not None, f"request {self.serial} holds no row"
        return self.row

    @property
    def only_end_matters(self) -> bool:
        """Tell whether only its end matters, so that its tokens may be sent several at a time."""
        params = self.params
        scored = params.logprobs is not None or params.prompt_logprobs is not None
        return params.output_kind is RequestOutputKind.FINAL_ONLY and not (params.stop or scored)

    @property
    def allows_multi_step(self) -> bool:
        """Tell whether the next token can be computed before any other actor knows the last one, except to see
        its end.
        """
        params = self.params
        guided = params.structured_outputs is not None or self.thinking is not None or self.speech is not None
        forced = params.trace_decode_token_ids is not None
        depends = guided or forced or params.has_penalties or self.bad_words
        return self.only_end_matters and self.trace is None and not depends and self.pooling is None

    @property
    def skips_cache(self) -> bool:
        """Tell whether its prompt must be computed although it may be cached: log-probabilities are wanted, or the
        hidden states of all tokens.
        """
        if self.pooling is not None:
            return self.pooling.reads_all
        return self.params.prompt_logprobs is not None and self.num_scored < len(self.prompt) - 1

    def embedded(self, num_cached: int) -> EmbeddedRows | None:
        """Return the embeddings that stand in for its prompt, but for what is cached; None where it has tokens."""
        if self.prompt_embeds is None:
            return None
        return self.prompt_embeds.uncached(num_cached)

    def chunk(self, start: int, most: int) -> int:
        """Return how many tokens, at most `most`, a step computes from `start` on; see `PromptEmbeds.whole`."""
        embeds = self.prompt_embeds
        if embeds is None or not embeds.whole or embeds.places is None:
            return most
        return uncut(embeds.places, start, start + most) - start

    def token_ids(self) -> npt.NDArray[np.int32]:
        """Return all known tokens in a fresh array, int32 [num_tokens]."""
        return np.concatenate([self.prompt, np.array(self.output, dtype=np.int32)])

    def end_reason(self) -> tuple[str, int | None] | None:
        """Return why the request ends with its last token (reason, stop token), or None."""
        token = self.output[-1]
        enough = len(self.output) >= self.params.min_tokens
        if token in self.end_tokens and (enough or self.params.structured_outputs is not None):
            # Before `min_tokens`, an end token is sampled only where a grammar allows nothing else.
            return "stop", None
        if enough and token in self.params.stop_token_ids:
            return "stop", token
        if self.num_tokens >= self.max_total:
            return "length", None
        return None
