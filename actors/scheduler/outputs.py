"""What one step brought, on its way to the detokenizer: one numbered `TokenBatch` per step."""

from __future__ import annotations

from collections import deque

import numpy as np

from pageant.actors.runtime.streams import Outgoing
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32, int64
from pageant.protocol.logprobs import Logprobs, Piece, join
from pageant.protocol.outputs import OpenOutput, RowFacts, TokenBatch
from pageant.protocol.serving import Finished

PROMPT_TAIL = 16  # tokens of the prompt that give the output's text its context


class TokenOutputs:
    """Collects openings, tokens and endings until the next batch is taken.

    An opening is kept until the detokenizer is known to have taken in the end of its request, so that a
    new detokenizer can be told to end it.
    """

    def __init__(self) -> None:
        self.stream: Outgoing[TokenBatch] = Outgoing("tokens")
        self._kept: dict[int, OpenOutput] = {}
        self._ends: deque[tuple[int, tuple[int, ...]]] = deque()  # by batch: the serials that end in it
        self._opened: list[OpenOutput] = []
        self._drawn: list[tuple[Int64Vector, Int32Vector]] = []  # serials and a token of each, by step
        self._finished: dict[int, Finished] = {}
        self._facts: dict[int, RowFacts] = {}
        self._logprobs: dict[int, list[Piece]] = {}
        self._prompt_logprobs: dict[int, list[Piece]] = {}

    def __bool__(self) -> bool:
        return bool(self._drawn or self._finished)

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
        )
        self._kept[request.serial] = opened
        self._opened.append(opened)

    def learned(self, request: ScheduledRequest) -> None:
        """A request got its memory, for the first time or again after a preemption, or its first token."""
        admitted, first = request.admitted_at, request.first_token_at
        self._facts[request.serial] = RowFacts(
            num_cached_tokens=request.num_cached,
            num_preemptions=request.num_preemptions,
            queue_seconds=0.0 if admitted is None else admitted - request.arrived_at,
            prefill_seconds=0.0 if admitted is None or first is None else first - admitted,
        )

    def logprobs(self, request: ScheduledRequest, piece: Piece) -> None:
        """Of a request's next token, which follows."""
        self._logprobs.setdefault(request.serial, []).append(piece)

    def prompt_logprobs(self, request: ScheduledRequest, piece: Piece) -> None:
        """Of its prompt's next tokens. They travel with its first token, or its end."""
        self._prompt_logprobs.setdefault(request.serial, []).append(piece)

    def tokens(self, serials: Int64Vector, token_ids: Int32Vector) -> None:
        """The next token of each of some requests, which are distinct."""
        if len(serials):
            self._drawn.append((serials, token_ids))

    def finish(self, request: ScheduledRequest, finished: Finished) -> None:
        """A request ended, after the tokens that it has been given."""
        self._finished[request.serial] = finished

    def drop(self, request: ScheduledRequest) -> None:
        """The detokenizer ended this request itself: it wants no more of it."""
        del self._kept[request.serial]
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
        ends = tuple(self._finished)
        self._opened, self._drawn, self._finished = [], [], {}
        self._facts = facts  # of those that have no token yet
        self.stream.number(batch)
        if ends:
            self._ends.append((batch.number, ends))
        return batch

    @property
    def _looked_up(self) -> bool:
        """Whether more than tokens is known of any row."""
        return bool(self._finished or self._facts or self._logprobs or self._prompt_logprobs)

    def _columns(self) -> tuple[Int64Vector, Int32Vector, Int32Vector]:
        """Serials, counts and tokens. Those that end without a token come last."""
        if len(self._drawn) == 1:
            serials, token_ids = self._drawn[0]
            counts = np.ones(len(serials), np.int32)
        else:
            rows: dict[int, list[int]] = {}
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

    def acknowledge(self, up_to: int) -> None:
        """The detokenizer has taken in the batches up to that number."""
        self.stream.acknowledge(up_to)
        while self._ends and self._ends[0][0] <= up_to:
            for serial in self._ends.popleft()[1]:
                del self._kept[serial]

    def restart(self, message: str) -> None:
        """The detokenizer is a new one: it is told to end all that the former may not have ended."""
        self.stream.restart()
        self._ends.clear()
        self._facts, self._logprobs, self._prompt_logprobs = {}, {}, {}
        self._opened = list(self._kept.values())
        self._drawn = []
        self._finished = dict.fromkeys(self._kept, Finished(reason="error", message=message))


def _by_row(index: dict[int, int], pieces: dict[int, list[Piece]]) -> Logprobs | None:
    """The pieces of the rows that there are, by row index instead of serial."""
    if not pieces:
        return None
    return join((place, piece) for serial, place in index.items() for piece in pieces.get(serial, ()))


def _without(serial: int, serials: Int64Vector, token_ids: Int32Vector) -> tuple[Int64Vector, Int32Vector]:
    kept = serials != serial
    return serials[kept], token_ids[kept]
