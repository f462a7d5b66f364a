"""A frontend's counters of its requests: tokens, ends, errors, and times.

They are counted where a request begins and ends, so that times are those that users see. Names and meanings of
the histograms are vLLM's, for which dashboards exist.
"""

from __future__ import annotations

from collections import Counter

from pageant.actors.runtime.histogram import Histogram, from_1_2_5
from pageant.protocol.errors import (
    BadRequest,
    DeadlineExceeded,
    GivenUp,
    Overloaded,
    PageantError,
    PeerGone,
    Unsupported,
)
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished
from pageant.protocol.statistics import HistogramCounts

LATENCIES = from_1_2_5(0.001, 500)  # of whole requests and their parts, in seconds
GAPS = from_1_2_5(0.0001, 5)  # between tokens
TOKENS = from_1_2_5(1, 1_000_000)
SAMPLES = (1.0, 2.0, 5.0, 10.0, 20.0)

KINDS = {
    BadRequest: "bad_request",
    Unsupported: "unsupported",
    Overloaded: "overloaded",
    PeerGone: "peer_gone",
    GivenUp: "peer_gone",
    DeadlineExceeded: "deadline",
}


class Metering:
    """The counts of one frontend."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.prompt_tokens = self.output_tokens = 0
        self.stepped_at = -1.0
        self.first_token = Histogram(LATENCIES)
        self._gaps = Histogram(GAPS)
        self._whole = Histogram(LATENCIES)
        self._queue, self._prefill, self._decode = (Histogram(LATENCIES) for _ in range(3))
        self._inference = Histogram(LATENCIES)
        self._per_token = Histogram(GAPS)
        self._prompt_lengths, self._output_lengths = Histogram(TOKENS), Histogram(TOKENS)
        self.longest = Histogram(TOKENS)
        self._max_tokens, self._samples = Histogram(TOKENS), Histogram(SAMPLES)

    def accepted(self, num_prompt_tokens: int, params: SamplingParams) -> None:
        """A request is handed to the scheduler."""
        self.prompt_tokens += num_prompt_tokens
        self._prompt_lengths.observe(num_prompt_tokens)
        self._samples.observe(params.num_sequences)
        if params.max_tokens is not None:
            self._max_tokens.observe(params.max_tokens)

    def stepped(self, num_tokens: int, num_steady: int, now: float) -> None:
        """Count a batch of tokens, received at `now` seconds.

        `num_steady` sequences got one token each, and had their last token with the batch before.
        """
        self.output_tokens += num_tokens
        if num_steady:
            self._gaps.observe(now - self.stepped_at, num_steady)
        self.stepped_at = now

    def gap(self, seconds: float, num_tokens: int) -> None:
        """Another sequence had waited so long for so many tokens."""
        self._gaps.observe(seconds / num_tokens, num_tokens)

    def finished(self, finished: Finished, seconds: float) -> None:
        """A sequence ended, so long after its request came."""
        self.ended[finished.reason] += 1
        if finished.reason == "error":
            self.errors[finished.cause or "failure"] += 1
            return
        self._whole.observe(seconds)
        self._queue.observe(finished.queue_seconds)
        self._prefill.observe(finished.prefill_seconds)
        self._decode.observe(finished.decode_seconds)
        self._inference.observe(finished.prefill_seconds + finished.decode_seconds)
        self._output_lengths.observe(finished.num_output_tokens)
        if finished.num_output_tokens > 1:
            self._per_token.observe(finished.decode_seconds / (finished.num_output_tokens - 1))

    def aborted(self, num_sequences: int) -> None:
        """A user wants no more of them."""
        self.ended["abort"] += num_sequences

    def failed(self, error: PageantError) -> None:
        """A request ended with an error of ours, instead of an output."""
        self.errors[KINDS.get(type(error), "failure")] += 1

    def histograms(self) -> dict[str, HistogramCounts]:
        """Return the histograms, by the name of their metric."""
        named = {
            "time_to_first_token_seconds": self.first_token,
            "inter_token_latency_seconds": self._gaps,
            "request_time_per_output_token_seconds": self._per_token,
            "e2e_request_latency_seconds": self._whole,
            "request_queue_time_seconds": self._queue,
            "request_prefill_time_seconds": self._prefill,
            "request_decode_time_seconds": self._decode,
            "request_inference_time_seconds": self._inference,
            "request_prompt_tokens": self._prompt_lengths,
            "request_generation_tokens": self._output_lengths,
            "request_max_num_generation_tokens": self.longest,
            "request_params_max_tokens": self._max_tokens,
            "request_params_n": self._samples,
        }
        return {name: histogram.statistics() for name, histogram in named.items()}
