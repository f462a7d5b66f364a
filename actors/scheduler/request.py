"""A request as the scheduler sees it: tokens known, tokens computed, and where it stands."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pageant.protocol.embedding import EmbeddedRows, PromptEmbeds
from pageant.protocol.logprobs import RowLogprobs
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Submit, WeightVersionSpan, WeightVersionSpans, spans_within
from pageant.protocol.thinking import Thinking


class State(enum.Enum):
    """Where a request is. Only RUNNING ones hold blocks and a row of the batch."""

    WAITING = "waiting"  # never admitted, or preempted
    ASKED = "asked"  # its admission is with the block manager
    RUNNING = "running"
    ENDED = "ended"


def ends_by_token(params: SamplingParams) -> bool:
    """Whether a request ends at the model's end tokens. With a grammar those are drawn only where it is complete."""
    return not params.ignore_eos or params.structured_outputs is not None


Key = tuple[float, ...]


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """One request. `serial` never comes twice; `arrival` is the order in which it came to this scheduler.

    An ended request keeps its row and blocks while steps name them: others must not have them before those have
    been computed. What changes with every step is kept by row (see `running`).
    """

    request_id: str
    frontend: str
    serial: int
    arrival: int
    prompt: npt.NDArray[np.int32]
    params: SamplingParams
    end_tokens: frozenset[int]
    salt: str | None = None  # of its prefix's names
    extra_keys: tuple[str, ...] = ()  # likewise
    tenant: str = ""
    priority: int = 0
    arrived_at: float = 0.0  # seconds of the scheduler's clock; also of one that came to a former scheduler
    deadline: float = math.inf  # likewise
    is_long: bool = False  # its prompt is computed beside few others like it
    max_total: int = 0  # tokens, prompt included, at which it ends by length
    key: Key = ()  # the policy's order, asked for once so that it is total, and serial, which breaks ties
    output: list[int] = field(default_factory=list)
    is_resumed: bool = False  # it was another scheduler's before
    num_resumed: int = 0  # output tokens that it brought along
    logprobs: list[RowLogprobs] = field(default_factory=list)  # of the others, if it asks for them
    prompt_logprobs: list[RowLogprobs] = field(default_factory=list)
    num_sent: int = 0  # output tokens that the detokenizer has been sent, where they go in pieces
    state: State = State.WAITING
    row: int | None = None  # of the batch, while it holds one
    num_computed: int = 0  # tokens whose KV is there, of one that a policy is asked about
    num_cached: int = 0  # prompt tokens found in the cache at first admission
    sample: int = 0  # of those with the same prompt and seed
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_scored: int = 0  # prompt tokens whose log-probabilities have come, or are not asked for
    admitted_at: float | None = None  # for the first time, by the scheduler's clock
    first_token_at: float | None = None
    num_preemptions: int = 0
    deaths: int = 0  # of executors that were computing it; see `recovery`
    died_at: int = 0  # up to which position at the last of them, its unknown tokens included
    trace: str | None = None
    adapter: str | None = None
    weight_versions: WeightVersionSpans = ()
    thinking: Thinking | None = None
    is_probe: bool = False
    prompt_embeds: PromptEmbeds | None = None  # kept to its end: it may have to be computed again

    @classmethod
    def of(cls, message: Submit, serial: int, end_tokens: frozenset[int], now: float) -> ScheduledRequest:
        """A request as it comes: new, or from a scheduler that died."""
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
            is_probe=message.is_probe,
            prompt_embeds=message.prompt_embeds,
        )
        behind = message.resume
        if behind is not None:
            request.arrived_at = now - behind.age
            request.output = behind.token_ids.tolist()
            request.is_resumed = True
            request.num_resumed = request.num_sent = len(request.output)
            request.weight_versions = behind.weight_versions
            if request.output:  # its prompt's log-probabilities came with the first token
                request.num_scored = max(0, len(request.prompt) - 1)
        return request

    @property
    def was_admitted(self) -> bool:
        """Whether it was admitted before, by this scheduler or another. Its tenant has paid for its prompt then."""
        return self.admitted_at is not None or self.num_resumed > 0

    def draw_with(self, version: str) -> None:
        """Note that its next tokens are drawn by weights of this version."""
        spans, start = self.weight_versions, len(self.output)
        if not spans or spans[-1].version != version:
            span = WeightVersionSpan(version=version, start=start)
            self.weight_versions = (*spans_within(spans, start), span)

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def held_row(self) -> int:
        """The row, of a request that holds one."""
        assert self.row is not None, f"request {self.serial} holds no row"
        return self.row

    @property
    def goes_in_pieces(self) -> bool:
        """Whether it makes no difference when its output comes, as long as its end does in time."""
        params = self.params
        scored = params.logprobs is not None or params.prompt_logprobs is not None
        return params.output_kind is RequestOutputKind.FINAL_ONLY and not (params.stop or scored)

    @property
    def is_plain(self) -> bool:
        """Whether nobody need know a token of it before the next is computed, but to see its end."""
        params = self.params
        guided = params.structured_outputs is not None or self.thinking is not None
        forced = params.trace_decode_token_ids is not None
        depends = guided or forced or params.has_penalties or self.bad_words
        return self.goes_in_pieces and self.trace is None and not depends

    @property
    def skips_cache(self) -> bool:
        """Whether its prompt must be computed, whatever is cached of it: log-probabilities are wanted."""
        return self.params.prompt_logprobs is not None and self.num_scored < len(self.prompt) - 1

    def embedded(self, num_cached: int) -> EmbeddedRows | None:
        """Return the embeddings that stand in for its prompt, but for what is cached; None where it has tokens."""
        if self.prompt_embeds is None:
            return None
        return EmbeddedRows(start=num_cached, rows=self.prompt_embeds.rows[num_cached:])

    def token_ids(self) -> npt.NDArray[np.int32]:
        """All tokens known, fresh."""
        return np.concatenate([self.prompt, np.array(self.output, dtype=np.int32)])

    def end_reason(self) -> tuple[str, int | None] | None:
        """After a token was drawn: why the request ends now (reason, stop token), or None."""
        token = self.output[-1]
        enough = len(self.output) >= self.params.min_tokens
        if token in self.end_tokens and (enough or self.params.structured_outputs is not None):
            return "stop", None  # before that, an end token is drawn only where a grammar allows nothing else
        if enough and token in self.params.stop_token_ids:
            return "stop", token
        if self.num_tokens >= self.max_total:
            return "length", None
        return None
