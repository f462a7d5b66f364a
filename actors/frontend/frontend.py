"""The frontend actor: carries a user's requests into the topology, and their outputs out of it.

It lives on the root node. The user's side hands it requests by `open`, on this node's loop; what comes back
goes to each request's sink, and each sink's hub is told once per step, so that a user's own loop wakes up
once per step and not once per token.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.metering import Metering
from pageant.actors.frontend.outputs import Arrived, RequestFailed
from pageant.actors.frontend.peers import CAST, Peers
from pageant.actors.frontend.prompts import check_allowed, check_length, truncated
from pageant.actors.frontend.requests import Hub, Opening, OpenRequest, OpenSequence
from pageant.actors.frontend.tracing import Tracing
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.actors.runtime.tracing import CURRENT
from pageant.protocol.errors import BadRequest, Overloaded, PageantError, PeerGone, Unsupported
from pageant.protocol.guiding import CompileGrammar, GrammarRefused
from pageant.protocol.logprobs import split
from pageant.protocol.roles import FRONTEND, ROLES, features_needed
from pageant.protocol.sampling import GREEDY_TEMPERATURE, SEED_MAX, SamplingParams
from pageant.protocol.serving import Abort, Finished, OutputBatch, Submit
from pageant.protocol.statistics import FrontendStatistics, GetFrontendStatistics
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tokenizing import Tokenize, TokenizeChat, Tokenized

log = logging.getLogger("pageant.frontend")

TOKENIZE_SECONDS = 60.0
COMPILE_SECONDS = 60.0
OPEN_MAX = 16_384  # sequences at a time; the scheduler's mailbox holds them all, with their aborts
KEEPERS = ("scheduler", "detokenizer")  # of what they hold for a request, a new life knows nothing


AnyPrompt = Tokenize | TokenizeChat | npt.NDArray[np.int32]


class Frontend(Actor):
    """Speaks for the users in this process."""

    role = FRONTEND

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of a frontend.

        Attributes:
            max_model_len, vocab_size: of the model.
            otlp_traces_endpoint: with one, requests are traced; see `Observer`.
            traces_sampled: the share of them that is, where the client does not say.
            detailed_traces: tell of every step of theirs.
        """

        max_model_len: int
        vocab_size: int
        otlp_traces_endpoint: str | None = None
        traces_sampled: float = 1.0
        detailed_traces: bool = False

        def __post_init__(self) -> None:
            if not 0 <= self.traces_sampled <= 1:
                raise ValueError(f"traces_sampled is {self.traces_sampled}; expected 0 to 1")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # By wire id: a user may reuse a name, and late news is not its.
        self._open: dict[str, OpenSequence] = {}
        self._requests: dict[str, OpenRequest] = {}  # by the user's own names
        self._numbers = itertools.count(1)
        self._incoming = Incoming("outputs")
        self._peers = Peers()
        self._metering = Metering()
        self._tracing: Tracing | None = None

    async def on_start(self) -> None:
        if self.options.otlp_traces_endpoint is not None:
            self._tracing = Tracing(self.tracer, self.options.traces_sampled)
        for address in CAST:
            self.watch(address)

    async def on_stop(self) -> None:
        self._fail_all(PeerGone("the engine was closed while this request was open"))

    # From the user's side, on this node's loop.

    def open(self, opening: Opening) -> None:
        """Takes a request. Its outcome goes to its sink, whatever happens."""
        name = opening.request_id
        count = opening.params.num_sequences
        if name in self._requests or len(self._open) + count > OPEN_MAX:
            used = BadRequest(f"request_id {name!r} is in use", "request_id")
            full = Overloaded(
                f"{len(self._open)} sequences are open in this process, at most {OPEN_MAX}; try again later"
            )
            opening.sink.failed(used if name in self._requests else full)
            opening.sink.hub.flush()
            return
        wire_ids = [f"{self.incarnation}.{next(self._numbers)}" for _ in range(count)]
        traceparent = opening.settings.pop("traceparent", None)
        trace = self._tracing.begin(traceparent) if self._tracing is not None else None
        request = OpenRequest(opening, wire_ids, self.clock.now(), self.clock.wall(), trace=trace)
        self._requests[name] = request
        for sample, wire_id in enumerate(wire_ids):
            self._open[wire_id] = OpenSequence(request, sample)
        self.spawn(self._start(request))

    def open_all(self, openings: list[Opening]) -> None:
        """Takes several requests."""
        for opening in openings:
            self.open(opening)

    def abort_all(self, request_ids: list[str]) -> None:
        """Ends requests, wherever they are. Their sinks hear no more of them."""
        requests = [self._requests[name] for name in request_ids if name in self._requests]
        self._metering.aborted(sum(len(one.wire_ids) for one in requests if not one.opening.is_probe))
        self._abort(requests)

    def _abort(self, requests: list[OpenRequest]) -> None:
        submitted: list[str] = []
        for request in requests:
            submitted += self._forget(request)
        if submitted:
            self.tell("scheduler", Abort(frontend=self.name, request_ids=tuple(submitted)))

    def _forget(self, request: OpenRequest) -> list[str]:
        """Takes a request out of the books. Returns those of its sequences that the scheduler has."""
        del self._requests[request.opening.request_id]
        if request.trace is not None and self._tracing is not None:
            self._tracing.ended(request.trace, request, self.clock.now())
        running = [wire_id for wire_id in request.wire_ids if self._open.pop(wire_id, None) is not None]
        return running if request.submitted else []

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    async def _start(self, request: OpenRequest) -> None:
        opening, params = request.opening, request.opening.params
        if request.trace is not None:
            CURRENT.set(request.trace.context)  # of this request's own task
        try:
            await self._wait_for_cast()
            self._check_features(opening)
            text, token_ids = await self._tokenize(self._bounded(opening.prompt, params))
            token_ids = truncated(token_ids, params, self.options.max_model_len)
            check_length(len(token_ids), self.options.max_model_len)
            bad_words = await self._tokenize_bad_words(params.bad_words)
            check_allowed(params, bad_words)
            await self._compile_grammar(params)
            await self._wait_for_cast()
        except PageantError as error:
            self._fail(request, error)
            return
        if self._requests.get(opening.request_id) is not request:
            return  # aborted meanwhile
        if params.seed is None and params.temperature >= GREEDY_TEMPERATURE:
            params = msgspec.structs.replace(params, seed=self.random.randint(0, SEED_MAX))
        if params.num_sequences > params.n and params.logprobs is None:
            params = msgspec.structs.replace(params, logprobs=0)  # by which the best are known
        opening.sink.accepted(text, token_ids.tolist())
        request.submitted = True
        if not opening.is_probe:
            self._metering.accepted(len(token_ids), params)
        settings: dict[str, Any] = {**opening.settings}
        if request.trace is not None:
            request.trace.num_prompt_tokens, request.trace.submitted_at = len(token_ids), self.clock.now()
            settings["trace"] = str(request.trace.context) if self.options.detailed_traces else None
        if settings.get("deadline") is not None:
            settings["deadline"] += request.arrived_at - self.clock.now()
        for sample, wire_id in enumerate(request.wire_ids):
            if sample == 1 and params.prompt_logprobs is not None:
                params = msgspec.structs.replace(params, prompt_logprobs=None)  # once is enough
            submit = Submit(
                request_id=wire_id,
                frontend=self.name,
                prompt_token_ids=token_ids,
                params=params,
                sample=sample,
                bad_words=bad_words,
                **settings,
            )
            self.tell("scheduler", self._open[wire_id].begin(submit, self.clock.now()))

    def _bounded(self, prompt: AnyPrompt, params: SamplingParams) -> AnyPrompt:
        """With how many tokens it may have at most, unless it is cut to fit."""
        if isinstance(prompt, np.ndarray) or params.truncate_prompt_tokens is not None:
            return prompt
        return msgspec.structs.replace(prompt, tokens_max=self.options.max_model_len - 1)

    async def _tokenize_bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """As in vLLM: each as it begins a text and, where that is another token, as it follows a blank."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            _, bare = await self._tokenize(Tokenize(text=word.lstrip() or word, add_special_tokens=False))
            _, led = await self._tokenize(Tokenize(text=" " + word.lstrip(), add_special_tokens=False))
            found[tuple(bare.tolist())] = None
            if len(led) == len(bare) and led[0] != bare[0]:
                found[tuple(led.tolist())] = None
        return tuple(ids for ids in found if ids)

    async def _compile_grammar(self, params: SamplingParams) -> None:
        """Refuses a request whose output cannot be made to look as it asks."""
        if params.structured_outputs is None:
            return
        asked = CompileGrammar(structured_outputs=params.structured_outputs)
        answer = await self.ask("grammar", asked, timeout=COMPILE_SECONDS, again=True)
        if isinstance(answer, GrammarRefused):
            raise BadRequest(
                f"structured_outputs.{params.structured_outputs.kind}: {answer.reason}", "structured_outputs"
            )

    async def _tokenize(self, prompt: AnyPrompt) -> tuple[str | None, npt.NDArray[np.int32]]:
        if not isinstance(prompt, Tokenize | TokenizeChat):
            return None, prompt
        answer = await self.ask("tokenizer", prompt, timeout=TOKENIZE_SECONDS, again=True)
        if isinstance(answer, Tokenized):
            return answer.text, answer.token_ids
        raise BadRequest(answer.reason, answer.parameter)

    async def _wait_for_cast(self) -> None:
        """Returns when every role has an actor that is up.

        Raises:
            PeerGone: one of them will not come back.
        """
        while True:
            if self._peers.lost is not None:
                raise PeerGone(self._peers.lost)
            if self._peers.complete:
                return
            self._peers.changed.clear()
            await self._peers.changed.wait()

    def _check_features(self, opening: Opening) -> None:
        """Refuses by name what an actor of this topology does not honour."""
        needed = set(features_needed(opening.params))
        if isinstance(opening.prompt, TokenizeChat):
            needed |= ROLES["tokenizer"].features
        for role in CAST:
            for feature in sorted(needed & ROLES[role].features):
                if not all(feature in features for features in self._peers.role(role)):
                    raise Unsupported(
                        f"this request needs {feature}, which this topology's {role} does not honour"
                    )

    # From the topology.

    @receives
    def outputs(self, batch: OutputBatch) -> None:
        """One step's outputs."""
        match self._incoming.arrive(batch.number, self.sender_incarnation):
            case Arrival.GAP:
                if self._incoming.should_ask():
                    self.tell(self.sender, Resume(stream="outputs", after=self._incoming.last))
                return
            case Arrival.NEXT:
                self._spread(batch)
        self.tell(self.sender, Acknowledge(stream="outputs", up_to=self._incoming.last))

    def _spread(self, batch: OutputBatch) -> None:
        token_ids = batch.token_ids.tolist()
        logprobs, prompt_logprobs = split(batch.logprobs), split(batch.prompt_logprobs)
        text_starts, token_starts = batch.text_starts.tolist(), batch.token_starts.tolist()
        now = self.clock.now()
        position = 0
        hubs: dict[Hub, None] = {}
        num_tokens, before = 0, list[tuple[float, int]]()  # the last tokens' times, and how many follow
        for index, (wire_id, count) in enumerate(zip(batch.request_ids, batch.counts.tolist(), strict=True)):
            tokens = token_ids[position : position + count]
            position += count
            sequence = self._open.get(wire_id)
            if sequence is None:
                continue
            request, finished = sequence.request, batch.finished.get(index)
            if tokens and request.first_token_at is None:
                request.first_token_at = now
                if not request.opening.is_probe:
                    self._metering.first_token.observe(now - request.arrived_at)
            arrived = sequence.take(
                Arrived(
                    *(sequence.sample, batch.texts[index], tokens, finished),
                    *(logprobs.get(index), prompt_logprobs.get(index), batch.token_texts),
                    request.metrics(finished) if finished is not None else None,
                ),
                text_starts[index],
                token_starts[index],
            )
            if arrived is None:
                self._fail(request, RequestFailed(f"a part of its output is missing after {wire_id}"))
                continue
            if fresh := len(arrived.token_ids):
                num_tokens += fresh
                if sequence.last_token_at:
                    before.append((sequence.last_token_at, fresh))
                sequence.last_token_at = now
            if arrived.is_news:
                request.opening.sink.output(arrived)
                hubs[request.opening.sink.hub] = None
            if finished is not None:
                self._sample_ended(wire_id, sequence, finished)
        for hub in hubs:
            hub.flush()
        self._metering.stepped(num_tokens, before, now)

    def _sample_ended(self, wire_id: str, sequence: OpenSequence, finished: Finished) -> None:
        """A sample ended, and with the last the request; an error ends the others too."""
        request = sequence.request
        request.longest_output = max(request.longest_output, finished.num_output_tokens)
        if not request.opening.is_probe:
            self._metering.finished(finished, self.clock.now() - request.arrived_at)
        if request.trace is not None:
            request.trace.sample_ended(sequence.sample, finished)
        del self._open[wire_id]
        if sequence.resumed:  # what ended it may be of a former life, and the scheduler be at it still
            self.tell("scheduler", Abort(frontend=self.name, request_ids=(wire_id,)))
        if finished.reason == "error":
            self._abort([request])
        elif not any(other in self._open for other in request.wire_ids):
            self._forget(request)
            if not request.opening.is_probe:
                self._metering.longest.observe(request.longest_output)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        self._peers.came(event)
        if event.address in KEEPERS:
            self._submit_again()

    def _submit_again(self) -> None:
        """Someone new may not know of our open requests, or have had their ends die with a former life."""
        now = self.clock.now()
        for sequence in self._open.values():
            if sequence.request.submitted:
                self.tell("scheduler", sequence.again(now))

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Open requests wait for its next life; without one, they end with a clear error."""
        self._peers.went(event)
        if event.final and self._peers.lost is not None:
            self._fail_all(PeerGone(self._peers.lost))

    # Looking in.

    @receives
    def statistics(self, question: GetFrontendStatistics) -> FrontendStatistics:
        """What was counted so far, and the oldest requests that are open."""
        now = self.clock.now()
        return FrontendStatistics(
            num_open=self.num_open,
            ended=dict(self._metering.ended),
            errors=dict(self._metering.errors),
            prompt_tokens=self._metering.prompt_tokens,
            output_tokens=self._metering.output_tokens,
            histograms=self._metering.histograms(),
            open=tuple(
                request.entry(now, [self._open[one] for one in request.wire_ids if one in self._open])
                for request in itertools.islice(self._requests.values(), question.open_max)
            ),
            **self.http_counts(),
        )

    def http_counts(self) -> dict[str, dict[str, int]]:
        """What an HTTP server counts besides."""
        return {}

    # Ends.

    def _fail(self, request: OpenRequest, error: PageantError) -> None:
        if self._requests.get(request.opening.request_id) is request:
            if request.trace is not None:
                request.trace.error = f"{type(error).__name__}: {error}"
            self._forget(request)
            self._metering.failed(error)
            request.opening.sink.failed(error)
            request.opening.sink.hub.flush()

    def _fail_all(self, error: PageantError) -> None:
        for request in list(self._requests.values()):
            self._fail(request, error)
