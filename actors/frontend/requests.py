"""Open requests, and what their frontend has of each: enough to hand them to a scheduler that knows nothing.

Whatever dies beside the frontend, a request goes on from here: `OpenSequence.again` is its submission with what it
has behind it, and `OpenSequence.take` drops what comes twice, so that a user gets every token once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.embeds import EmbeddedPrompt
from pageant.actors.frontend.given_audio import PromptWithAudio
from pageant.actors.frontend.images import PromptWithImages
from pageant.actors.frontend.outputs import Arrived, RequestMetrics
from pageant.actors.frontend.peers import Peers
from pageant.actors.frontend.places import Place
from pageant.actors.frontend.prompts import RequestSettings
from pageant.actors.frontend.tracing import RequestTrace
from pageant.protocol.arrays import int32
from pageant.protocol.errors import PageantError
from pageant.protocol.pooling import PoolingParams
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished, Resumption, Submit, WeightVersionSpans, spans_within
from pageant.protocol.statistics import OpenRequestEntry
from pageant.protocol.tokenizing import Tokenize, TokenizeChat


class Hub(Protocol):
    """Passes sinks' outputs on to another loop."""

    def flush(self) -> None:
        """Pass on the outputs of a step, all of which the sinks have got."""


class Sink(Protocol):
    """Takes one request's outputs, on this node's loop."""

    @property
    def hub(self) -> Hub:
        """Return the hub that passes its outputs on."""

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        """The request is on its way."""

    def output(self, arrived: Arrived) -> None:
        """The next piece of one of its samples; the last of each says how it ended. An error is the last."""

    def failed(self, error: PageantError) -> None:
        """Fail the request: there will be no (more) output."""


@dataclass(eq=False)
class Opening:
    """A request as the user's side hands it over, checked as far as it could be there.

    Attributes:
        replica: of the model that is to answer it; None is the first.
        is_probe: of ours: it does not count.
        pooling: what is made of the prompt's hidden states, instead of an answer; `params` are `NOTHING_SAMPLED` then.
    """

    request_id: str
    prompt: (
        Tokenize | TokenizeChat | npt.NDArray[np.int32] | EmbeddedPrompt | PromptWithImages | PromptWithAudio
    )
    params: SamplingParams
    sink: Sink
    settings: RequestSettings = field(default_factory=RequestSettings)
    replica: str | None = None
    is_probe: bool = False
    pooling: PoolingParams | None = None


@dataclass(eq=False)
class OpenRequest:
    """A request that has not ended: its sequences' wire ids, and when things happened."""

    opening: Opening
    peers: Peers
    wire_ids: list[str]
    arrived_at: float
    arrival_time: float
    submitted: bool = False
    first_token_at: float | None = None
    submitted_at: float = 0.0
    num_prompt_tokens: int = 0
    scheduler: str = ""  # of its latest submission
    ended: dict[int, Finished] = field(default_factory=dict)  # by sample
    error: str | None = None
    trace: RequestTrace | None = None

    def metrics(self, finished: Finished) -> RequestMetrics:
        """Return the times of the request, by its sample that ended last."""
        first = self.first_token_at
        return RequestMetrics(
            arrival_time=self.arrival_time,
            first_token_time=None if first is None else first - self.arrived_at,
            queue_time=finished.queue_seconds,
            prefill_time=finished.prefill_seconds,
            decode_time=finished.decode_seconds,
            num_cached_tokens=finished.num_cached_tokens,
            num_preemptions=finished.num_preemptions,
        )

    def entry(self, now: float, running: Sequence[OpenSequence]) -> OpenRequestEntry:
        """Return an entry for statistics at `now` seconds, with the sequences that have not ended."""
        submits = [sequence.submit for sequence in running if sequence.submit is not None]
        return OpenRequestEntry(
            request_id=self.opening.request_id,
            seconds=now - self.arrived_at,
            num_sequences=len(running),
            num_prompt_tokens=len(submits[0].prompt_token_ids) if submits else 0,
            num_output_tokens=sum(len(sequence.token_ids) for sequence in running),
            replicas=tuple(sorted({one.place.prefix for one in running if one.place and one.place.prefix})),
        )


@dataclass(eq=False, slots=True)
class OpenSequence:
    """Sample of an open request, under a wire id of its own, and what has come of it."""

    request: OpenRequest
    sample: int
    submit: Submit | None = None
    submitted_at: float = 0.0
    resumed: bool = False  # submitted more than once
    place: Place | None = None  # where it is submitted; None while no place takes it
    is_moving: bool = False  # the scheduler of `place` was asked to end it, and has not answered
    next_place: str = ""  # where it goes on once its place has ended it for that; "" leaves that open
    num_charged: int = 0  # tokens that `place` counts for it
    was_sent: bool = False
    deaths: int = 0  # of executors that it is suspected of, as its former scheduler said
    died_at: int = 0
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    num_characters: int = 0
    last_token_at: float = 0.0
    has_prompt_logprobs: bool = False
    weight_versions: WeightVersionSpans = ()
    prompt_end: Finished | None = None  # what the replica that computed only the prompt said at its end

    def begin(self, submit: Submit, now: float) -> None:
        """Record the first submission, at `now` seconds."""
        self.submit, self.submitted_at = submit, now

    @property
    def is_submitted(self) -> bool:
        """Tell whether it is prepared, so that some place is to compute it."""
        return self.submit is not None

    @property
    def num_tokens(self) -> int:
        """Return the tokens of the prompt and of the output so far."""
        assert self.submit is not None, "it was prepared"
        return len(self.submit.prompt_token_ids) + len(self.token_ids)

    def whole(self, finished: Finished) -> Finished:
        """Return the end of the whole sequence, given what the last replica said.

        The replica that computed the prompt knows what was cached of it, and how long that took. What came back
        from a store after a handover is no cached prompt, and all time since is part of decoding.
        """
        if (began := self.prompt_end) is None:
            return finished
        return msgspec.structs.replace(
            finished,
            num_cached_tokens=began.num_cached_tokens,
            num_preemptions=began.num_preemptions + finished.num_preemptions,
            queue_seconds=began.queue_seconds,
            prefill_seconds=began.prefill_seconds,
            decode_seconds=finished.queue_seconds + finished.prefill_seconds + finished.decode_seconds,
        )

    def first(self, now: float) -> Submit:
        """Return the first submission, with what is left of its time at `now` seconds."""
        assert self.submit is not None, "it was prepared"
        self.was_sent = True
        deadline = self.submit.deadline
        if deadline is None or now == self.submitted_at:
            return self.submit
        left = max(0.0, deadline - (now - self.submitted_at))
        return msgspec.structs.replace(self.submit, deadline=left)

    def again(self, now: float, detokenizer: int, name: str) -> Submit:
        """Return the submission under this wire id, with the output so far and what is left of its time at `now`
        seconds.
        """
        assert self.submit is not None, "it was never submitted"
        self.resumed = True
        age = now - self.submitted_at
        deadline = self.submit.deadline
        return msgspec.structs.replace(
            self.submit,
            request_id=name,
            deadline=None if deadline is None else max(0.0, deadline - age),
            resume=Resumption(
                token_ids=int32(self.token_ids),
                age=age,
                detokenizer=detokenizer,
                weight_versions=spans_within(self.weight_versions, len(self.token_ids)),
                deaths=self.deaths,
                died_at=self.died_at,
            ),
        )

    def take(self, arrived: Arrived, text_start: int, token_start: int) -> Arrived | None:
        """Return the new part of output that begins at these positions; None if output before it is missing."""
        characters, tokens = self.num_characters - text_start, len(self.token_ids) - token_start
        if characters < 0 or tokens < 0:
            return None
        if characters:
            arrived = arrived._replace(text=arrived.text[characters:])
        if tokens:
            logprobs = arrived.logprobs.part(tokens) if arrived.logprobs is not None else None
            arrived = arrived._replace(token_ids=arrived.token_ids[tokens:], logprobs=logprobs)
        if arrived.prompt_logprobs is not None:
            if self.has_prompt_logprobs:
                arrived = arrived._replace(prompt_logprobs=None)
            self.has_prompt_logprobs = True
        self.num_characters += len(arrived.text)
        self.token_ids.extend(arrived.token_ids)
        return arrived
