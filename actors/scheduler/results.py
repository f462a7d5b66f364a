"""What a step brought: a token of each row that drew, or several, if its drafts were right; or one that comes late."""

from __future__ import annotations

import numpy as np

from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.plans import Computing, Drawn, Withdrawn
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.running import Chunks
from pageant.protocol.arrays import BoolVector, Int32Vector
from pageant.protocol.logprobs import RowLogprobs, split_rows
from pageant.protocol.stepping import LateTokens, StepResult
from pageant.protocol.verification import Drafts


class Results:
    """Gives requests their tokens, and ends those that are complete.

    `going`, throughout, says which of the rows that drew belong to requests that still run, and have not been
    dealt with.
    """

    def __init__(self, requests: OpenRequests) -> None:
        self._requests, self._counters, self._news = requests, requests.counters, requests.news
        self._running, self._outputs = requests.running, requests.outputs
        self._deferrals, self._speculator = requests.deferrals, requests.speculator

    def take(self, step: Computing, message: StepResult) -> None:
        """A step has been computed."""
        chunks = step.chunks
        going = self._running.computed(chunks)
        if message.num_steps:
            self._counters.rows_wasted += len(chunks) - int(going.sum())  # they ended while this was at hand
        self._requests.leave(chunks)
        for index, piece in split_rows(message.prompt_logprobs).items():
            if going[index]:
                request = self._running.at(int(chunks.rows[index]))
                self._take_prompt_logprobs(request, int(chunks.starts[index]), piece)
        if step.may_stop_short:
            self._take_steps(chunks, message)
            return
        drawing, going = chunks[chunks.draws], going[chunks.draws]
        if step.drafts:
            self._take_verified(drawing, going, step.drafts, message)
        else:
            self._take_drawn(drawing, going, message)

    def _take_drawn(self, drawing: Chunks, going: BoolVector, message: StepResult) -> None:
        """One token of each."""
        for place in message.void:
            self._take_void(drawing, going, place)
        for place, why in message.failed.items():
            if going[place]:
                self._fail(self._running.at(int(drawing.rows[place])), why)
                going[place] = False
        for place in message.deferred:
            self._defer(drawing, going, place, message.number)
        for place, piece in split_rows(message.logprobs).items():
            if going[place]:
                self._outputs.logprobs(self._running.at(int(drawing.rows[place])), piece)
        token_ids = message.token_ids
        if not going.all():
            drawing, token_ids = drawing[going], token_ids[going]
        self._take_computed(drawing, token_ids)
        self._deferrals.settle()

    def _take_steps(self, chunks: Chunks, message: StepResult) -> None:
        """One token of each, step after step, for as many as there were: those who still run go on from there."""
        if message.num_steps < chunks.num_steps:
            ends = chunks.starts + np.int32(message.num_steps)
            self._running.take_back(chunks.rows, ends)
            self._news.withdrawn.append(Withdrawn(chunks.serials, ends))
            self._counters.steps -= chunks.num_steps - message.num_steps
            self._counters.steps_together -= (chunks.num_steps - message.num_steps) * (chunks.num_steps > 1)
        running = self._running.are_running(chunks.rows)
        for place, why in message.failed.items():  # of the first step, in which each row draws
            if running[place]:
                self._fail(self._running.at(int(chunks.rows[place])), why)
        for token_ids in message.token_ids.reshape(message.num_steps, len(chunks)):
            going = self._running.are_running(chunks.rows)
            if going.any():
                self._take_computed(chunks[going], token_ids[going])

    def _take_verified(self, drawing: Chunks, going: BoolVector, drafts: Drafts, message: StepResult) -> None:
        """The tokens of each up to the first that follows a wrong draft, one after another."""
        assert self._speculator is not None
        drafts = drafts._replace(counts=drawing.drafts)
        accepted, places = drafts.verify(message.token_ids)
        self._speculator.verified(drawing.rows, going, drafts, accepted)
        pieces = split_rows(message.logprobs)
        for index in np.flatnonzero(np.isin(drafts.first_places, message.void)).tolist():
            self._take_void(drawing, going, index)
        first = np.cumsum(accepted + 1) - accepted - 1
        for ahead in range(int(accepted.max()) + 1):
            going = going & (accepted >= ahead) & self._running.are_running(drawing.rows)
            some = message.failed or message.deferred or pieces
            for index in np.flatnonzero(going).tolist() if some else ():
                place = int(places[first[index] + ahead])
                request = self._running.at(int(drawing.rows[index]))
                if place in message.failed:
                    self._fail(request, message.failed[place])
                    going[index] = False
                elif place in message.deferred:
                    self._defer(drawing, going, index, message.number)
                elif place in pieces:
                    self._outputs.logprobs(request, pieces[place])
            self._take_computed(drawing[going], message.token_ids[places[first[going] + ahead]])
        self._deferrals.settle()

    def take_late(self, message: LateTokens) -> None:
        """Tokens that a step deferred. Those of requests that have ended, or gave way, are of no account."""
        logprobs = split_rows(message.logprobs)
        for place, row in enumerate(message.rows.tolist()):
            if not self._deferrals.awaits(row, message.number):
                continue
            request = self._running.at(row)
            if request.state is State.ENDED:  # and a step that is at hand still computes its row
                continue
            if place in message.failed:
                self._fail(request, message.failed[place])
                continue
            if place in logprobs:
                self._outputs.logprobs(request, logprobs[place])
            token_ids = message.token_ids[place : place + 1]
            drawing = Chunks.of([request.serial], [row], [0], [1], [True])
            self._deferrals.arrived(row, Drawn(drawing.serials, token_ids))
            self._take_tokens(drawing, token_ids)
        self._deferrals.settle()

    # One row.

    def _fail(self, request: ScheduledRequest, why: str) -> None:
        self._requests.end(request, "error", message=why, cause="failure")

    def _defer(self, drawing: Chunks, going: BoolVector, index: int, plan: int) -> None:
        """It was computed, and its token comes later."""
        if going[index]:
            going[index] = False
            self._counters.rows_deferred += 1
            self._news.drawn += self._deferrals.drew(drawing.rows[index : index + 1])
            self._deferrals.defer(int(drawing.rows[index]), plan)

    def _take_void(self, drawing: Chunks, going: BoolVector, index: int) -> None:
        """It was not computed, since its last token had been deferred."""
        if going[index]:
            going[index] = False
            self._counters.rows_void += 1
            one = slice(index, index + 1)
            self._running.take_back(drawing.rows[one], drawing.starts[one])

    def _take_prompt_logprobs(self, request: ScheduledRequest, start: int, piece: RowLogprobs) -> None:
        """Of the tokens that follow those computed from `start`; after a preemption, some have come before."""
        known = request.num_scored - start
        if known < len(piece):
            request.num_scored = start + len(piece)
            self._outputs.prompt_logprobs(request, piece.part(known))

    # One token of each of some rows.

    def _take_computed(self, drawing: Chunks, token_ids: Int32Vector) -> None:
        """Those rows were computed up to it."""
        self._news.drawn += self._deferrals.drew(drawing.rows)
        self._news.drawn.append(Drawn(drawing.serials, token_ids))
        self._take_tokens(drawing, token_ids)

    def _take_tokens(self, drawing: Chunks, token_ids: Int32Vector) -> None:
        """Those requests run."""
        requests, rows = self._requests, drawing.rows
        self._running.drew(rows, token_ids)
        in_pieces, due = self._running.in_pieces(rows)
        for request in self._running.first_drawn(rows):
            request.first_token_at = requests.now
            self._outputs.learned(request)
        if in_pieces.any():
            self._outputs.tokens(drawing.serials[~in_pieces], token_ids[~in_pieces])
            for request in due:
                self._outputs.piece(request)
        else:
            self._outputs.tokens(drawing.serials, token_ids)
        requests.waiting.drew(map(self._running.at, rows.tolist()))
        for request in self._running.candidates(rows, token_ids, requests.limits.end_tokens):
            requests.end_if_complete(request)
