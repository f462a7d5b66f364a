"""The detokenizer's shell. Only it sends a request's terminal message."""

from __future__ import annotations

from typing import Any

from pageant.actors.detokenizer.core import Detokenization
from pageant.actors.detokenizer.delivery import Delivery
from pageant.actors.detokenizer.marks import spell_begin, spell_end
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.models.tokenization import Tokenization
from pageant.protocol.arrays import int32, int64
from pageant.protocol.logprobs import RowLogprobs, split_rows
from pageant.protocol.outputs import OpenOutput, RowFacts, Stopped, TokenBatch
from pageant.protocol.roles import DETOKENIZER
from pageant.protocol.serving import Finished, WeightVersionSpans, spans_within
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.thinking import GetMarks, Marks
from pageant.protocol.tracing import Attribute, TraceContext

SCHEDULER = "scheduler"


class _Open:
    """An open request: how much of its output has been delivered, and its facts."""

    __slots__ = ("facts", "first_token_at", "num_characters", "num_tokens", "request", "versions_sent")

    def __init__(self, request: OpenOutput) -> None:
        self.request = request
        # Delivered tokens and characters of the output.
        self.num_tokens = self.num_characters = 0
        self.facts = RowFacts(num_cached_tokens=0, num_preemptions=0)
        self.first_token_at: float | None = None
        self.versions_sent: WeightVersionSpans = ()
        """What its frontend was told of the weights."""


class _TokenTexts(dict[int, str]):
    """Caches the text of each token, decoded by itself."""

    def __init__(self, tokenization: Tokenization) -> None:
        super().__init__()
        self._tokenization = tokenization

    def __missing__(self, token: int) -> str:
        text = self[token] = self._tokenization.decode([token], skip_special_tokens=False)
        return text


class Detokenizer(Actor):
    """Turns each step's tokens into one batch of text per frontend."""

    role = DETOKENIZER
    features = DETOKENIZER.features

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of a detokenizer.

        Attributes:
            model: the checkpoint's folder.
            tokenizer: the folder of the tokenizer; None is the checkpoint's.
            skip_tokenizer_init: load no tokenizer: no token has a text.
        """

        model: str
        tokenizer: str | None = None
        skip_tokenizer_init: bool = False

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # Open requests, by the scheduler's serials.
        self._requests: dict[int, _Open] = {}
        # Outputs on their way to each frontend, by its address.
        self._deliveries: dict[str, Delivery] = {}
        self._incoming = Incoming("tokens")

        # The scheduler that owns the open requests: its incarnation, and the start of its stream.
        self._life = 0, 1
        # Trace contexts by serial, of requests whose steps are traced.
        self._traces: dict[int, TraceContext] = {}
        # Tables of marks, by the marks' texts.
        self._marks: dict[tuple[str, str], Marks] = {}

    async def on_start(self) -> None:
        tokenization = await self.offload(self._load)
        self._detokenization = Detokenization(tokenization)
        self._token_texts, self._num_tokens = _TokenTexts(tokenization), tokenization.vocab_size
        self.watch(SCHEDULER)

    def _load(self) -> Tokenization:
        options = self.options
        return Tokenization.of_model(options.model, options.tokenizer, skip=options.skip_tokenizer_init)

    @receives(concurrent=True)
    async def marks(self, asked: GetMarks) -> Marks:
        """Return the tables of two marks over the tokens."""
        found = self._marks.get((asked.begin, asked.end))
        if found is None:
            found = self._marks[asked.begin, asked.end] = await self.offload(self._spell, asked)
        return found

    def _spell(self, asked: GetMarks) -> Marks:
        pieces = self._detokenization.pieces(self._num_tokens)
        if pieces is None:
            return Marks()
        begin, end = spell_begin(asked.begin.encode(), pieces), spell_end(asked.end.encode(), pieces)
        return Marks(begin=begin, end=end) if all(end.rest) else Marks()

    @receives
    def tokens(self, batch: TokenBatch) -> None:
        """Turn one step's tokens into text."""
        arrival = self._incoming.arrive(batch.number, self.sender_incarnation, batch.start)
        if arrival is Arrival.NEXT:
            self._follow_scheduler()
            began = self.clock.now()
            self._take(batch)
            if self._traces:
                self._tell_spans(batch, began)
        if (reply := self._incoming.reply(arrival)) is not None:
            self.tell(self.sender, reply)

    def _take(self, batch: TokenBatch) -> None:
        stopped: dict[int, int] = {}
        for opened in batch.opened:
            kept = self._open(opened)
            if kept is not None:
                stopped[opened.serial] = kept
        end = 0
        token_ids, serials = batch.token_ids.tolist(), batch.serials.tolist()
        logprobs, prompt_logprobs = split_rows(batch.logprobs), split_rows(batch.prompt_logprobs)
        now = self.clock.now()
        for index, facts in batch.facts.items():
            if serials[index] in self._requests:
                self._requests[serials[index]].facts = facts
        for index, (serial, count) in enumerate(zip(serials, batch.counts.tolist(), strict=True)):
            begin, end = end, end + count
            entry = self._requests.get(serial)
            if entry is None:
                continue
            tokens, finished = token_ids[begin:end], batch.finished.get(index)
            if tokens and entry.first_token_at is None:
                entry.first_token_at = now
            kept = self._push(serial, entry, tokens, finished)
            if kept is not None:
                stopped[serial] = kept
            if index in logprobs or index in prompt_logprobs:
                # `_push` has removed the tokens that do not count.
                pieces = logprobs.get(index), prompt_logprobs.get(index)
                self._add_logprobs(serial, entry, len(tokens), *pieces)
        for frontend in self._deliveries:
            self._flush(frontend)
        if stopped:
            counts, life = int32(list(stopped.values())), self._incoming.incarnation
            self.tell(
                self.sender,
                Stopped(serials=int64(list(stopped)), num_output_tokens=counts, incarnation=life),
            )

    def _tell_spans(self, batch: TokenBatch, began: float) -> None:
        """Send spans of traced requests in a batch, which may have ended by now."""
        now = self.clock.now()
        facts: dict[str, Attribute] = {"pageant.batch": batch.number, "pageant.rows": len(batch.serials)}
        traced = [serial for serial in batch.serials.tolist() if serial in self._traces]
        self.tracer.tell(
            *(
                self.tracer.part("detokenize", self._traces[one], began, now, attributes=facts)
                for one in traced
            )
        )
        self._traces = {serial: self._traces[serial] for serial in self._traces if serial in self._requests}

    def _open(self, opened: OpenOutput) -> int | None:
        """Open a request, after the output that it brings along. Return what `_push` returns."""
        if opened.frontend not in self._deliveries:
            self._deliveries[opened.frontend] = Delivery(
                self._token_texts.__getitem__, self._detokenization.token_bytes
            )
            self.watch(opened.frontend)
        entry = self._requests[opened.serial] = _Open(opened)
        if opened.trace is not None and (context := TraceContext.parse(opened.trace)) is not None:
            self._traces[opened.serial] = context
        if opened.detokenize:
            self._detokenization.open(
                opened.serial,
                opened.prompt_tail.tolist(),
                stop=opened.stop,
                include_stop_str_in_output=opened.include_stop_str_in_output,
                skip_special_tokens=opened.skip_special_tokens,
                spaces_between_special_tokens=opened.spaces_between_special_tokens,
                min_tokens=opened.min_tokens,
            )
        if not len(opened.token_ids):
            return None
        entry.first_token_at = self.clock.now()
        return self._push(opened.serial, entry, opened.token_ids.tolist(), None, known=True)

    def _push(
        self,
        serial: int,
        entry: _Open,
        tokens: list[int],
        finished: Finished | None,
        known: bool = False,
    ) -> int | None:
        """Add a request's tokens. Return how many output tokens count if a stop string ends it here, else None.

        Args:
            known: the frontend has these tokens, but maybe not all of their text.
        """
        entry.num_tokens += len(tokens) if known else 0
        if not entry.request.detokenize:
            self._deliver(serial, entry, "", [] if known else tokens, finished)
            return None
        # The token that ended the request has no visible text.
        # One that goes on elsewhere ends nothing: what is held back comes there.
        is_last = finished is not None and finished.cause != "moved"
        ended_by_token = finished is not None and finished.reason == "stop"
        is_silent = ended_by_token and not entry.request.include_stop_str_in_output
        delta = self._detokenization.push(serial, tokens[:-1] if is_silent else tokens)
        text, stop = delta.text, delta.stop
        if stop is None:
            if is_last:
                text += self._detokenization.finish(serial).text
        else:
            if not known:
                del tokens[max(0, stop.num_tokens - entry.num_tokens) :]
            finished = Finished(
                reason="stop",
                stop_reason=stop.stop,
                num_output_tokens=stop.num_tokens,
                num_cached_tokens=entry.facts.num_cached_tokens,
                num_preemptions=entry.facts.num_preemptions,
                queue_seconds=entry.facts.queue_seconds,
                prefill_seconds=entry.facts.prefill_seconds,
                decode_seconds=self.clock.now() - (entry.first_token_at or 0.0),
                weight_versions=spans_within(entry.facts.weight_versions, stop.num_tokens),
            )
        self._deliver(serial, entry, text, [] if known else tokens, finished)
        return stop.num_tokens if stop is not None else None

    def rewrite(self, request: OpenOutput, text: str, last: bool) -> str:
        """Return the text that a request's user gets in place of `text`. A subclass overrides this; here it is
        `text`.

        Called in order for each part of an answer, as it is decoded: the end of a word may come with the next
        part. Stop strings are searched for in the model's own text, before. Runs on the event loop: it must be
        quick.

        Args:
            last: no further part comes; what was held back must be returned now.
        """
        return text

    def _deliver(
        self, serial: int, entry: _Open, text: str, tokens: list[int], finished: Finished | None
    ) -> None:
        request, text_start, token_start = entry.request, entry.num_characters, entry.num_tokens
        if request.detokenize:
            text = self.rewrite(request, text, finished is not None and finished.cause != "moved")
        versions, sent = entry.facts.weight_versions, entry.versions_sent
        entry.versions_sent = versions
        self._deliveries[request.frontend].add(
            *(serial, request.request_id, text, tokens, finished, text_start, token_start),
            weight_versions=() if versions is sent else versions,
        )
        entry.num_characters += len(text)
        entry.num_tokens += len(tokens)
        if finished is not None:
            self._close(serial)

    def _add_logprobs(
        self,
        serial: int,
        entry: _Open,
        num_tokens: int,
        logprobs: RowLogprobs | None,
        prompt_logprobs: RowLogprobs | None,
    ) -> None:
        self._deliveries[entry.request.frontend].add_logprobs(
            serial,
            logprobs.part(0, num_tokens) if logprobs is not None else None,
            prompt_logprobs,
            texts=entry.request.detokenize,
        )

    def _close(self, serial: int) -> None:
        self._detokenization.close(serial)
        del self._requests[serial]

    def _flush(self, frontend: str) -> None:
        batch = self._deliveries[frontend].take()
        if batch is not None:
            self.tell(frontend, batch)

    def _follow_scheduler(self) -> None:
        """Forget the requests of a former scheduler. A new one opens here what its frontends submit again."""
        life = self._incoming.incarnation, self._incoming.start
        if life == self._life:
            return
        self._life = life
        for serial in list(self._requests):
            self._close(serial)
        self._traces.clear()
        for delivery in self._deliveries.values():
            delivery.drop()

    @receives
    def acknowledged(self, message: Acknowledge) -> None:
        """Note that a frontend has processed our batches up to a number."""
        delivery = self._deliveries.get(self.sender)
        if delivery is not None and message.incarnation in (0, self.incarnation):
            delivery.stream.acknowledge(message.up_to)
            self._flush(self.sender)

    @receives
    def resume(self, message: Resume) -> None:
        """Send a frontend the batches that it missed."""
        delivery = self._deliveries.get(self.sender)
        if delivery is not None and message.incarnation in (0, self.incarnation):
            for batch in delivery.stream.resume(message.after):
                self.tell(self.sender, batch)

    @receives
    def peer_up(self, event: ActorUp) -> None:
        """Follow a new scheduler, and send a new frontend the batches that its former life did not acknowledge.

        A new scheduler may send nothing if no request is left. A new frontend may have asked already: its
        output may have been sent to its former life before the end of that was known.
        """
        if event.address == SCHEDULER and event.incarnation > self._incoming.incarnation:
            self._incoming.begin(event.incarnation)
            self._follow_scheduler()
        delivery = self._deliveries.get(event.address)
        for batch in delivery.stream.hand_over() if delivery is not None else ():
            self.tell(event.address, batch)

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Drop the output of a frontend that is down for good. The scheduler ends its requests."""
        delivery = self._deliveries.get(event.address)
        if delivery is not None and event.final:
            delivery.drop()
            delivery.stream.restart()
