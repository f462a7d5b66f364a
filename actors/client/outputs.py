"""Outputs for users, with the names that users of such engines know."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pageant.actors.client.lora import LoRARequest
from pageant.actors.frontend.outputs import (
    Arrived,
    RequestFailed,
    RequestMetrics,
    TokenLogprobs,
    token_logprobs,
)
from pageant.protocol.errors import BadRequest, Overloaded, PageantError
from pageant.protocol.sampling import RequestOutputKind, SamplingParams
from pageant.protocol.serving import Finished, FinishReason


@dataclass(frozen=True)
class WeightVersionSpan:
    """Output tokens from `start` on, before `end`, were drawn by weights of this version."""

    version: str
    start: int
    end: int


@dataclass
class CompletionOutput:
    """Completion of a request, so far; or, with `output_kind` DELTA, what is new of it.

    Attributes:
        text, token_ids: everything so far.
        cumulative_logprob: the sum of those of all its tokens; None if not asked for.
        logprobs: for each of `token_ids`; None if not asked for.
        finish_reason: `stop`, `length`, `abort` or `error` when it has ended; None before.
        stop_reason: the stop string or token id that ended it; None for the model's own end token.
        lora_request: the adapter that computes it, where it was named so.
        new_text, new_token_ids: what has come since the previous output of this request.
        weight_versions: the weights that its tokens were drawn by, in order: several, if they were replaced meanwhile.
            None before it has ended.
        routed_experts, sampling_mask, spec_decode_metrics: vLLM's; None here.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    routed_experts: None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    lora_request: LoRARequest | None = None
    sampling_mask: None = None
    spec_decode_metrics: None = None
    weight_versions: list[WeightVersionSpan] | None = None
    new_text: str = ""
    new_token_ids: list[int] = field(default_factory=list)

    def finished(self) -> bool:
        """Tell whether it has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A request and its completions, so far.

    Attributes:
        prompt: the text as the model sees it; None when token ids were given.
        prompt_logprobs: for each of `prompt_token_ids`, None for the first; None if not asked for, or not yet
            computed.
        metrics: when it has ended.
        lora_request: the adapter that computes it, where it was named so.
        num_cached_tokens: prompt tokens whose KV was found in the prefix cache.
        num_preemptions: how often it had to give way for lack of memory.
        error: what went wrong, if it ended with `error`, or with an `abort` that nobody asked for.
        encoder_prompt, encoder_prompt_token_ids, num_cache_creation_tokens, prompt_token_id_logprobs,
            kv_transfer_params, ec_transfer_params: vLLM's; None here.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    num_cached_tokens: int = 0
    num_cache_creation_tokens: None = None
    prompt_token_id_logprobs: None = field(default=None, kw_only=True)
    kv_transfer_params: None = field(default=None, kw_only=True)
    ec_transfer_params: None = field(default=None, kw_only=True)
    num_preemptions: int = field(default=0, kw_only=True)
    error: str | None = field(default=None, kw_only=True)

    @property
    def weight_versions(self) -> tuple[str, ...]:
        """Return the versions of the weights that drew its tokens, each once, in order; none before it has ended."""
        spans = (span for one in self.outputs for span in one.weight_versions or ())
        return tuple(dict.fromkeys(span.version for span in spans))

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Takes in a later output of the same request, which is changed by it no more.

        Args:
            aggregate: append what its completions hold, which is right for DELTA; else they take the place of these.
        """
        self.finished |= next_output.finished
        self.metrics = next_output.metrics or self.metrics
        mine = {one.index: place for place, one in enumerate(self.outputs)}
        for one in next_output.outputs:
            if one.index not in mine:
                self.outputs.append(one)
            elif aggregate:
                _append(self.outputs[mine[one.index]], one)
            else:
                self.outputs[mine[one.index]] = one


def _append(completion: CompletionOutput, later: CompletionOutput) -> None:
    completion.text += later.text
    completion.token_ids = [*completion.token_ids, *later.token_ids]
    if later.logprobs:
        completion.logprobs = [*(completion.logprobs or ()), *later.logprobs]
    completion.cumulative_logprob = later.cumulative_logprob
    completion.finish_reason, completion.stop_reason = later.finish_reason, later.stop_reason
    completion.weight_versions = later.weight_versions


@dataclass(slots=True)
class _Sample:
    """State of one completion as it comes."""

    index: int
    ranked: bool = True  # whether tokens beside its own are the likeliest ones
    finished: Finished | None = None
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    shown_texts: int = 0
    shown_tokens: int = 0
    shown_end: bool = False

    def add(self, arrived: Arrived) -> None:
        if arrived.text:
            self.texts.append(arrived.text)
        self.token_ids += arrived.token_ids
        self.finished = arrived.finished
        if arrived.logprobs is not None:
            self.logprobs += token_logprobs(
                arrived.logprobs, arrived.token_texts, arrived.token_bytes, ranked=self.ranked
            )
            self.cumulative_logprob += float(arrived.logprobs.logprobs.sum(dtype="float64"))

    @property
    def is_fresh(self) -> bool:
        """Tell whether output has come since it was last shown."""
        more = len(self.token_ids) > self.shown_tokens or len(self.texts) > self.shown_texts
        return more or (self.finished is not None and not self.shown_end)

    def output(self, index: int, params: SamplingParams, lora: LoRARequest | None) -> CompletionOutput:
        """Return the output as of now; the new part is what came since the last call."""
        new_text = "".join(self.texts[self.shown_texts :])
        new_token_ids = self.token_ids[self.shown_tokens :]
        delta = params.output_kind is RequestOutputKind.DELTA
        asked = params.logprobs is not None
        logprobs = self.logprobs[self.shown_tokens if delta else 0 :] if asked else None
        if len(self.texts) > 1:
            self.texts = ["".join(self.texts)]
        self.shown_texts, self.shown_tokens = len(self.texts), len(self.token_ids)
        ended = self.finished
        self.shown_end = ended is not None
        return CompletionOutput(
            index=index,
            text=new_text if delta else "".join(self.texts),
            token_ids=new_token_ids.copy() if delta else self.token_ids.copy(),
            new_text=new_text,
            new_token_ids=new_token_ids,
            finish_reason=ended.reason if ended is not None else None,
            stop_reason=ended.stop_reason if ended is not None else None,
            logprobs=logprobs,
            cumulative_logprob=self.cumulative_logprob if asked else None,
            lora_request=lora,
            weight_versions=None if ended is None else weight_spans(ended, len(self.token_ids)),
        )


class Completion:
    """Collects a request's outputs as they come."""

    __slots__ = (
        *(
            "_final_only",
            "_left",
            "_lora_request",
            "_metrics",
            "_params",
            "_prompt_logprobs",
            "_samples",
            "failed",
        ),
        *("prompt", "prompt_token_ids", "request_id"),
    )

    def __init__(
        self, request_id: str, params: SamplingParams, lora_request: LoRARequest | None = None
    ) -> None:
        self.request_id = request_id
        self._lora_request = lora_request
        self.prompt: str | None = None
        self.prompt_token_ids: list[int] = []
        self.failed: Finished | None = None
        self._params = params
        ranked = params.logprob_token_ids is None
        self._samples = [_Sample(index, ranked) for index in range(params.num_sequences)]
        self._left = len(self._samples)
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._metrics: RequestMetrics | None = None
        # Which samples are the best is known at the end.
        chooses = params.num_sequences > params.n
        self._final_only = chooses or params.output_kind is RequestOutputKind.FINAL_ONLY

    def add(self, arrived: Arrived) -> None:
        """Takes in the next piece."""
        self._samples[arrived.sample].add(arrived)
        if arrived.prompt_logprobs is not None:
            scored = token_logprobs(arrived.prompt_logprobs, arrived.token_texts, arrived.token_bytes)
            self._prompt_logprobs = [*(self._prompt_logprobs or [None]), *scored]
        if arrived.finished is not None:
            self._left -= 1
            self._metrics = arrived.metrics
            if arrived.finished.reason == "error":
                self.failed = arrived.finished

    @property
    def end(self) -> Finished | None:
        """Return the end of its first sample; None before."""
        return self._samples[0].finished

    @property
    def finished(self) -> bool:
        """Tell whether no more output will come. An error of one sample ends the others."""
        return not self._left or self.failed is not None

    def endings(self, reason: FinishReason) -> list[Arrived]:
        """Return ends for the samples that have not ended, when no actor will report them any more."""
        return [
            Arrived(one.index, "", [], Finished(reason=reason, num_output_tokens=len(one.token_ids)))
            for one in self._samples
            if one.finished is None
        ]

    def failure(self) -> PageantError:
        """Return the error to raise for a request that failed."""
        assert self.failed is not None
        kinds: dict[str, type[PageantError]] = {"overload": Overloaded, "request": BadRequest}
        return kinds.get(self.failed.cause or "", RequestFailed)(self.failed.message or "it failed")

    def output(self) -> RequestOutput | None:
        """The output as of now, what is new in it being new since the last call; None while there is none."""
        finished, params = self.finished, self._params
        if self._final_only and not finished:
            return None
        samples = self._samples
        if len(samples) > params.n:
            samples = sorted(samples, key=lambda sample: -sample.cumulative_logprob)[: params.n]
        elif params.output_kind is RequestOutputKind.DELTA:
            samples = [sample for sample in samples if sample.is_fresh]
        ends = [sample.finished for sample in self._samples if sample.finished is not None]
        asked = params.prompt_logprobs is not None and (ends or any(one.token_ids for one in self._samples))
        chosen = len(self._samples) > params.n
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[
                sample.output(place if chosen else sample.index, params, self._lora_request)
                for place, sample in enumerate(samples)
            ],
            finished=finished,
            num_cached_tokens=ends[0].num_cached_tokens if ends else 0,
            num_preemptions=sum(end.num_preemptions for end in ends),
            error=next((end.message for end in ends if end.message is not None), None),
            prompt_logprobs=(self._prompt_logprobs or [None]) if asked else None,
            metrics=self._metrics_now() if finished else None,
            lora_request=self._lora_request,
        )

    def _metrics_now(self) -> RequestMetrics | None:
        if self._metrics is None:
            return None
        return replace(self._metrics, num_generation_tokens=sum(len(one.token_ids) for one in self._samples))


def weight_spans(finished: Finished, num_tokens: int) -> list[WeightVersionSpan]:
    """Return the weights that the tokens of an output were drawn by, of `num_tokens` in all.

    The list is empty where nobody says: a request that was taken back ended without its scheduler's word.
    """
    spans = finished.weight_versions
    if not spans:
        return []
    ends = [*(span.start for span in spans[1:]), num_tokens]
    return [WeightVersionSpan(span.version, span.start, end) for span, end in zip(spans, ends, strict=True)]
