"""Outputs of requests as a frontend hands them on: one step's text and tokens, log-probabilities, and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pageant.protocol.errors import PageantError
from pageant.protocol.logprobs import RowLogprobs
from pageant.protocol.serving import Finished, WeightVersionSpans


class RequestFailed(PageantError):
    """An accepted request ended with an error, such as the death of an actor that had it in its hands."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability at its place, before any temperature, penalty or filter, and its rank from 1.

    `decoded_token` is its text by itself; None without `detokenize`. `token_bytes` are its bytes where they are no
    characters by themselves: its text has replacement characters then.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    token_bytes: bytes | None = None


TokenLogprobs = dict[int, Logprob]
"""At one place: the token that is there, first, and the likeliest ones."""


@dataclass(frozen=True)
class RequestMetrics:
    """Times of a request, in seconds.

    Attributes:
        arrival_time: when the request came, since 1970.
        first_token_time: from its arrival to its first token; None if it had none.
        queue_time: from its submission to its admission.
        prefill_time: from its admission to its first token.
        decode_time: from its first token to its end.
        num_generation_tokens: tokens of all its samples.
    """

    arrival_time: float
    first_token_time: float | None = None
    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_generation_tokens: int = 0

    # The same under vLLM's names; all times are since 1970.

    @property
    def first_token_latency(self) -> float:
        """Return the time from arrival to the first token; 0 if it had none."""
        return self.first_token_time or 0.0

    @property
    def first_token_ts(self) -> float:
        """Return the time of the first token; 0 if it had none."""
        return 0.0 if self.first_token_time is None else self.arrival_time + self.first_token_time

    @property
    def last_token_ts(self) -> float:
        """Return the time of the last token; 0 if it had none."""
        return 0.0 if self.first_token_time is None else self.first_token_ts + self.decode_time

    @property
    def scheduled_ts(self) -> float:
        """Return the time of its admission."""
        return self.queued_ts + self.queue_time

    @property
    def queued_ts(self) -> float:
        """Return the time of its submission to a scheduler."""
        before = (self.first_token_time or 0.0) - self.prefill_time - self.queue_time
        return self.arrival_time + max(0.0, before)

    @property
    def is_corrupted(self) -> bool:
        """False: a step whose logits are not numbers fails."""
        return False


class Arrived(NamedTuple):
    """Output of one sample of a request from one step."""

    sample: int
    text: str
    token_ids: list[int]
    finished: Finished | None = None
    logprobs: RowLogprobs | None = None
    prompt_logprobs: RowLogprobs | None = None
    token_texts: Mapping[int, str] = {}
    metrics: RequestMetrics | None = None
    token_bytes: Mapping[int, bytes] = {}
    weight_versions: WeightVersionSpans = ()  # all so far, where they are others than before

    @property
    def is_news(self) -> bool:
        """Tell whether it has any output."""
        return bool(
            self.text or self.token_ids or self.finished is not None or self.prompt_logprobs is not None
        )


def token_logprobs(
    piece: RowLogprobs, texts: Mapping[int, str], raw: Mapping[int, bytes], *, ranked: bool = True
) -> list[TokenLogprobs]:
    """Return for each token of a piece itself, and the likeliest at its place.

    Args:
        texts, raw: by the tokens' ids, as `OutputBatch` has them.
        ranked: whether these are the likeliest, in their order; else they are those that the request lists.
    """
    found, first = [], 0
    columns = (piece.token_ids.tolist(), piece.logprobs.tolist(), piece.ranks.tolist(), piece.counts.tolist())
    top_ids, top = piece.top_ids.tolist(), piece.top.tolist()
    for token, logprob, rank, count in zip(*columns, strict=True):
        place = {token: Logprob(logprob, rank, texts.get(token), raw.get(token))}
        for index in range(first, first + count):
            likely = top_ids[index]
            if likely != token:
                rank = index - first + 1 if ranked else None
                place[likely] = Logprob(top[index], rank, texts.get(likely), raw.get(likely))
        first += count
        found.append(place)
    return found
