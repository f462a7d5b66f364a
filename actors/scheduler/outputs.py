"""What one step brought, on its way to the detokenizer: one numbered `TokenBatch` per step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from pageant.actors.runtime.streams import Outgoing
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32, int64
from pageant.protocol.logprobs import Logprobs, RowLogprobs, join_rows
from pageant.protocol.outputs import OpenOutput, RowFacts, TokenBatch
from pageant.protocol.serving import Finished

PROMPT_TAIL = 16  # tokens of the prompt that give the output's text its context


class TokenOutputs:
    """Collects openings, tokens and endings until the next batch is taken.

    A request's log-probabilities are kept with it, for a detokenizer that may have to be told again. One that nobody
    looks at before its end goes in pieces: most steps bring nothing of it.
    """

    def __init__(self) -> None:
        self.stream: Outgoing[TokenBatch] = Outgoing("tokens")
        self._opened: list[OpenOutput] = []
        self._drawn: list[tuple[Int64Vector, Int32Vector]] = []  # serials and a token of each, by step
        self._again: dict[int, list[int]] = {}  # what was drawn before, for a new detokenizer
        self._pieces: dict[int, list[int]] = {}
        self._finished: dict[int, Finished] = {}
        self._facts: dict[int, RowFacts] = {}
        self._logprobs: dict[int, list[RowLogprobs]] = {}
        self._prompt_logprobs: dict[int, list[RowLogprobs]] = {}

    def __bool__(self) -> bool:
        return bool(self._drawn or self._finished or self._again or self._pieces)

    def open(self, request: ScheduledRequest) -> None:
        """A request's tokens will come."""
        params = request.params
        opened = OpenOutput(
            serial=request.serial,
            request_id=request.request_id,
            frontend=request.frontend,
            prompt_tail=request.prompt[-PROMPT_TAIL:].copy(),
            stop=params.stop,
            min_tokens=params.min_tokens,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            detokenize=params.detokenize,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            token_ids=int32(request.output[: request.num_resumed]),
            trace=request.trace,
        )
        self._opened.append(opened)

    def learned(self, request: ScheduledRequest) -> None:
        """A request got its memory, for the first time or again after a preemption, or its first token."""
        admitted, first = request.admitted_at, request.first_token_at
        self._facts[request.serial] = RowFacts(
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
            queue_seconds=0.0 if admitted is None else admitted - request.arrived_at,
            prefill_seconds=0.0 if admitted is None or first is None else first - admitted,
            weight_versions=request.weight_versions,
        )

    def logprobs(self, request: ScheduledRequest, piece: RowLogprobs) -> None:
        """Of a request's next token, which follows."""
        piece = piece.copy()
        request.logprobs.append(piece)
        self._logprobs.setdefault(request.serial, []).append(piece)

    def prompt_logprobs(self, request: ScheduledRequest, piece: RowLogprobs) -> None:
        """Of its prompt's next tokens. They travel with its first token, or its end."""
        piece = piece.copy()
        request.prompt_logprobs.append(piece)
        self._prompt_logprobs.setdefault(request.serial, []).append(piece)

    def tokens(self, serials: Int64Vector, token_ids: Int32Vector) -> None:
        """The next token of each of some requests, which are distinct."""
        if len(serials):
            self._drawn.append((serials, token_ids))

    def piece(self, request: ScheduledRequest) -> None:
        """The tokens of a request that have not been sent."""
        tokens = request.output[request.num_sent :]
        if tokens:
            request.num_sent = len(request.output)
            self._pieces[request.serial] = self._pieces.get(request.serial, []) + tokens

    def finish(self, request: ScheduledRequest, finished: Finished) -> None:
        """A request ended, after the tokens that it has been given."""
        if request.goes_in_pieces:
            self.piece(request)
        self._finished[request.serial] = finished

    def drop(self, request: ScheduledRequest) -> None:
        """The detokenizer ended this request itself: it wants no more of it."""
        self._again.pop(request.serial, None)
        others = [_without(request.serial, *step) for step in self._drawn]
        self._drawn = [step for step in others if len(step[0])]
        self._facts.pop(request.serial, None)
        self._logprobs.pop(request.serial, None)
        self._prompt_logprobs.pop(request.serial, None)

    def take(self) -> TokenBatch:
        """The batch of everything collected, numbered and kept until it is acknowledged."""
        serials, counts, token_ids = self._columns()
        index = {serial: place for place, serial in enumerate(serials.tolist())} if self._looked_up else {}
        batch = TokenBatch(
            number=0,
            opened=tuple(self._opened),
            serials=serials,
            counts=counts,
            token_ids=token_ids,
            finished={index[serial]: finished for serial, finished in self._finished.items()},
            facts={index[serial]: facts for serial, facts in self._facts.items() if serial in index},
            logprobs=_by_row(index, self._logprobs),
            prompt_logprobs=_by_row(index, self._prompt_logprobs),
        )
        facts = {serial: facts for serial, facts in self._facts.items() if serial not in index}
        scored = self._prompt_logprobs
        self._prompt_logprobs = {serial: scored[serial] for serial in scored if serial not in index}
        self._logprobs = {}
        self._opened, self._drawn, self._again, self._pieces, self._finished = [], [], {}, {}, {}
        self._facts = facts  # of those that have no token yet
        return self.stream.number(batch)

    @property
    def _looked_up(self) -> bool:
        """Whether more than tokens is known of any row."""
        return bool(self._finished or self._facts or self._logprobs or self._prompt_logprobs)

    def _columns(self) -> tuple[Int64Vector, Int32Vector, Int32Vector]:
        """Serials, counts and tokens. Those that end without a token come last."""
        if len(self._drawn) <= 1 and not self._again:
            serials, token_ids = self._drawn[0] if self._drawn else (int64(), int32())
            counts = np.ones(len(serials), np.int32)
            if pieces := self._pieces:
                serials = np.concatenate([int64(list(pieces)), serials])
                counts = np.concatenate([int32([len(tokens) for tokens in pieces.values()]), counts])
                token_ids = np.concatenate([int32([*chain.from_iterable(pieces.values())]), token_ids])
        else:
            rows = self._again
            for serial, tokens in self._pieces.items():
                rows[serial] = rows.get(serial, []) + tokens
            for step in self._drawn:
                for serial, token in zip(*(column.tolist() for column in step), strict=True):
                    rows.setdefault(serial, []).append(token)
            serials, counts = int64(list(rows)), int32([len(tokens) for tokens in rows.values()])
            token_ids = int32([token for tokens in rows.values() for token in tokens])
        if self._finished:
            known = set(serials.tolist())
            without = int64([serial for serial in self._finished if serial not in known])
            serials = np.concatenate([serials, without])
            counts = np.concatenate([counts, np.zeros(len(without), np.int32)])
        return serials, counts, token_ids

    def reopen(self, requests: Iterable[ScheduledRequest]) -> None:
        """The detokenizer is a new one, and knows nothing: it is told of these, with their whole output."""
        self.stream.restart()
        self._opened, self._drawn, self._again, self._pieces, self._finished = [], [], {}, {}, {}
        self._facts, self._logprobs, self._prompt_logprobs = {}, {}, {}
        for request in requests:
            self.open(request)
            if request.admitted_at is not None:
                self.learned(request)
            if len(request.output) > request.num_resumed:
                self._again[request.serial] = request.output[request.num_resumed :]
            request.num_sent = len(request.output)
            if request.logprobs:
                self._logprobs[request.serial] = request.logprobs.copy()
            if request.prompt_logprobs:
                self._prompt_logprobs[request.serial] = request.prompt_logprobs.copy()


def _by_row(index: dict[int, int], pieces: dict[int, list[RowLogprobs]]) -> Logprobs | None:
    """The pieces of the rows that there are, by row index instead of serial."""
    if not pieces:
        return None
    return join_rows((place, piece) for serial, place in index.items() for piece in pieces.get(serial, ()))


def _without(serial: int, serials: Int64Vector, token_ids: Int32Vector) -> tuple[Int64Vector, Int32Vector]:
    kept = serials != serial
    return serials[kept], token_ids[kept]
