"""The stream to the detokenizer: one numbered `TokenBatch` per step."""

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

# Tokens at the end of the prompt that the detokenizer gets as context.
PROMPT_TAIL = 16


class TokenOutputs:
    """Collects openings, tokens and endings until the next batch is taken.

    A request's log-probabilities are kept with it, for a new detokenizer that must get them again. The tokens
    of a request that only needs its end are sent several at a time, so that most steps send nothing of it.
    """

    def __init__(self) -> None:
        self.stream: Outgoing[TokenBatch] = Outgoing("tokens")
        self._opened: list[OpenOutput] = []
        # One entry per step: serials, and a token of each.
        self._sampled: list[tuple[Int64Vector, Int32Vector]] = []
        # Earlier output by serial, for a new detokenizer.
        self._resent: dict[int, list[int]] = {}
        # Tokens by serial of requests whose tokens are sent several at a time.
        self._unsent: dict[int, list[int]] = {}
        self._finished: dict[int, Finished] = {}
        # Facts by serial; kept until the request has tokens to send.
        self._facts: dict[int, RowFacts] = {}
        self._logprobs: dict[int, list[RowLogprobs]] = {}
        self._prompt_logprobs: dict[int, list[RowLogprobs]] = {}

    def __bool__(self) -> bool:
        return bool(self._sampled or self._finished or self._resent or self._unsent)

    def open(self, request: ScheduledRequest) -> None:
        """Open a request, whose tokens will come."""
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

    def update_facts(self, request: ScheduledRequest) -> None:
        """Report the facts of a request that was admitted (again), or got its first token."""
        admitted, first = request.admitted_at, request.first_token_at
        self._facts[request.serial] = RowFacts(
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
            queue_seconds=0.0 if admitted is None else admitted - request.arrived_at,
            prefill_seconds=0.0 if admitted is None or first is None else first - admitted,
            weight_versions=request.weight_versions,
        )

    def logprobs(self, request: ScheduledRequest, piece: RowLogprobs) -> None:
        """Add the log-probabilities of a request's next token, which follows."""
        piece = piece.copy()
        request.logprobs.append(piece)
        self._logprobs.setdefault(request.serial, []).append(piece)

    def prompt_logprobs(self, request: ScheduledRequest, piece: RowLogprobs) -> None:
        """Add log-probabilities of a prompt's next tokens. They travel with the request's first token, or its
        end.
        """
        piece = piece.copy()
        request.prompt_logprobs.append(piece)
        self._prompt_logprobs.setdefault(request.serial, []).append(piece)

    def tokens(self, serials: Int64Vector, token_ids: Int32Vector) -> None:
        """Add the next token of each of N distinct requests. serials: int64 [N]. token_ids: int32 [N]."""
        if len(serials):
            self._sampled.append((serials, token_ids))

    def add_unsent(self, request: ScheduledRequest) -> None:
        """Add the tokens of a request that have not been sent."""
        tokens = request.output[request.num_sent :]
        if tokens:
            request.num_sent = len(request.output)
            self._unsent[request.serial] = self._unsent.get(request.serial, []) + tokens

    def finish(self, request: ScheduledRequest, finished: Finished) -> None:
        """End a request, after the tokens that were added."""
        if request.only_end_matters:
            self.add_unsent(request)
        self._finished[request.serial] = finished

    def drop(self, request: ScheduledRequest) -> None:
        """Drop what was collected of a request that the detokenizer ended itself."""
        self._resent.pop(request.serial, None)
        others = [_without(request.serial, *step) for step in self._sampled]
        self._sampled = [step for step in others if len(step[0])]
        self._facts.pop(request.serial, None)
        self._logprobs.pop(request.serial, None)
        self._prompt_logprobs.pop(request.serial, None)

    def take(self) -> TokenBatch:
        """Return the batch of everything collected, numbered and kept until it is acknowledged."""
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
        self._opened, self._sampled, self._resent, self._unsent, self._finished = [], [], {}, {}, {}
        # Facts of requests without a token wait for it.
        self._facts = facts
        return self.stream.number(batch)

    @property
    def _looked_up(self) -> bool:
        """Tell whether the batch has more than tokens."""
        return bool(self._finished or self._facts or self._logprobs or self._prompt_logprobs)

    def _columns(self) -> tuple[Int64Vector, Int32Vector, Int32Vector]:
        """Return serials, counts and tokens. Requests that end without a token come last."""
        if len(self._sampled) <= 1 and not self._resent:
            serials, token_ids = self._sampled[0] if self._sampled else (int64(), int32())
            counts = np.ones(len(serials), np.int32)
            if pieces := self._unsent:
                serials = np.concatenate([int64(list(pieces)), serials])
                counts = np.concatenate([int32([len(tokens) for tokens in pieces.values()]), counts])
                token_ids = np.concatenate([int32([*chain.from_iterable(pieces.values())]), token_ids])
        else:
            rows = self._resent
            for serial, tokens in self._unsent.items():
                rows[serial] = rows.get(serial, []) + tokens
            for step in self._sampled:
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
        """Start over with a new detokenizer: open these requests again, with their whole output."""
        self.stream.restart()
        self._opened, self._sampled, self._resent, self._unsent, self._finished = [], [], {}, {}, {}
        self._facts, self._logprobs, self._prompt_logprobs = {}, {}, {}
        for request in requests:
            self.open(request)
            if request.admitted_at is not None:
                self.update_facts(request)
            if len(request.output) > request.num_resumed:
                self._resent[request.serial] = request.output[request.num_resumed :]
            request.num_sent = len(request.output)
            if request.logprobs:
                self._logprobs[request.serial] = request.logprobs.copy()
            if request.prompt_logprobs:
                self._prompt_logprobs[request.serial] = request.prompt_logprobs.copy()


def _by_row(index: dict[int, int], pieces: dict[int, list[RowLogprobs]]) -> Logprobs | None:
    """Return the columns of the log-probabilities of the rows in `index`, by row index instead of serial."""
    if not pieces:
        return None
    return join_rows((place, piece) for serial, place in index.items() for piece in pieces.get(serial, ()))


def _without(serial: int, serials: Int64Vector, token_ids: Int32Vector) -> tuple[Int64Vector, Int32Vector]:
    kept = serials != serial
    return serials[kept], token_ids[kept]
