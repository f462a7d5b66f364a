"""Results of a step: a token of each sampling row, several if its drafts were right, or one that comes late."""

from __future__ import annotations

import numpy as np

from pageant.actors.scheduler.open_requests import OpenRequests
from pageant.actors.scheduler.plans import Computing, SampledTokens, Withdrawn
from pageant.actors.scheduler.request import ScheduledRequest, State
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.protocol.arrays import BoolVector, Int32Matrix, Int32Vector
from pageant.protocol.logprobs import RowLogprobs, split_rows
from pageant.protocol.stepping import LateTokens, StepResult
from pageant.protocol.verification import Drafts


class Results:
    """Gives requests their tokens, and ends those that are complete.

    The mask `live`, bool [sampling rows], marks rows whose requests still run and have not been handled.
    """

    def __init__(self, requests: OpenRequests) -> None:
        self._requests, self._counters, self._block_updates = (
            requests,
            requests.counters,
            requests.block_updates,
        )
        self._running, self._outputs = requests.running, requests.outputs
        self._deferrals, self._speculator = requests.deferrals, requests.speculator

    def take(self, step: Computing, message: StepResult) -> None:
        """Take the tokens of a step that has been computed."""
        chunks = step.chunks
        live = self._running.computed(chunks)
        if message.num_steps:
            # Requests that ended while the step was under way have been computed in vain.
            self._counters.rows_wasted += len(chunks) - int(live.sum())
        self._requests.leave(chunks)
        for index, piece in split_rows(message.prompt_logprobs).items():
            if live[index]:
                request = self._running.at(int(chunks.rows[index]))
                self._take_prompt_logprobs(request, int(chunks.starts[index]), piece)
        if step.may_end_early:
            self._take_steps(chunks, message)
            return
        drawing, live = chunks[chunks.draws], live[chunks.draws]
        if step.drafts:
            self._take_verified(drawing, live, step.drafts, message)
        else:
            self._take_sampled(drawing, live, message)

    def _take_sampled(self, drawing: ScheduledRows, live: BoolVector, message: StepResult) -> None:
        """Take one token of each row."""
        for place in message.void:
            self._take_void(drawing, live, place)
        for place, why in message.failed.items():
            if live[place]:
                self._fail(self._running.at(int(drawing.rows[place])), why)
                live[place] = False
        self._take_pooled(drawing, live, message)
        for place in message.deferred:
            self._defer(drawing, live, place, message.number)
        for place, piece in split_rows(message.logprobs).items():
            if live[place]:
                self._outputs.logprobs(self._running.at(int(drawing.rows[place])), piece)
        token_ids = message.token_ids
        if not live.all():
            drawing, token_ids = drawing[live], token_ids[live]
        self._take_computed(drawing, token_ids)
        self._deferrals.settle()

    def _take_steps(self, chunks: ScheduledRows, message: StepResult) -> None:
        """Take one token of each row, step after step. Rows that still run go on from the last computed step."""
        if message.num_steps < chunks.num_steps:
            ends = chunks.starts + np.int32(message.num_steps)
            self._running.withdraw(chunks.rows, ends)
            self._block_updates.withdrawn.append(Withdrawn(chunks.serials, ends))
            self._counters.steps -= chunks.num_steps - message.num_steps
            self._counters.steps_together -= (chunks.num_steps - message.num_steps) * (chunks.num_steps > 1)
        running = self._running.are_running(chunks.rows)
        # Failures name rows of the first step, in which each row samples.
        for place, why in message.failed.items():
            if running[place]:
                self._fail(self._running.at(int(chunks.rows[place])), why)
        left = message.token_ids.reshape(message.num_steps, len(chunks))
        while len(left):
            live = self._running.are_running(chunks.rows)
            if not live.any():
                return
            drawing, token_ids = chunks[live], left[:, live]
            count = self._steps_to_end(drawing.rows, token_ids)
            self._take_run(drawing, token_ids[:count])
            left = left[count:]

    def _steps_to_end(self, rows: Int32Vector, token_ids: Int32Matrix) -> int:
        """Return how many steps of R rows there are up to the first that may end one. token_ids: int32 [steps, R]."""
        ends = np.zeros(len(token_ids), np.bool_)
        for token in self._requests.limits.end_tokens:
            ends |= (token_ids == token).any(axis=1)
        first = int(ends.argmax()) + 1 if ends.any() else len(token_ids)
        return max(1, min(first, self._running.steps_to_length(rows)))

    def _take_verified(
        self, drawing: ScheduledRows, live: BoolVector, drafts: Drafts, message: StepResult
    ) -> None:
        """Take the tokens of each row up to the first that follows a wrong draft."""
        assert self._speculator is not None
        drafts = drafts._replace(counts=drawing.drafts)
        self._take_pooled(drawing, live, message)
        accepted, places = drafts.verify(message.token_ids)
        self._speculator.verified(drawing.rows, live, drafts, accepted)
        pieces = split_rows(message.logprobs)
        for index in np.flatnonzero(np.isin(drafts.first_places, message.void)).tolist():
            self._take_void(drawing, live, index)
        first = np.cumsum(accepted + 1) - accepted - 1
        for ahead in range(int(accepted.max()) + 1):
            live = live & (accepted >= ahead) & self._running.are_running(drawing.rows)
            some = message.failed or message.deferred or pieces
            for index in np.flatnonzero(live).tolist() if some else ():
                place = int(places[first[index] + ahead])
                request = self._running.at(int(drawing.rows[index]))
                if place in message.failed:
                    self._fail(request, message.failed[place])
                    live[index] = False
                elif place in message.deferred:
                    self._defer(drawing, live, index, message.number)
                elif place in pieces:
                    self._outputs.logprobs(request, pieces[place])
            self._take_computed(drawing[live], message.token_ids[places[first[live] + ahead]])
        self._deferrals.settle()

    def take_late(self, message: LateTokens) -> None:
        """Take tokens that a step deferred. Those of requests that have ended or were preempted are ignored."""
        logprobs = split_rows(message.logprobs)
        for place, row in enumerate(message.rows.tolist()):
            if not self._deferrals.awaits(row, message.number):
                continue
            request = self._running.at(row)
            # A step under way still computes the row of the ended request.
            if request.state is State.ENDED:
                continue
            if place in message.failed:
                self._fail(request, message.failed[place])
                continue
            if place in logprobs:
                self._outputs.logprobs(request, logprobs[place])
            token_ids = message.token_ids[place : place + 1]
            drawing = ScheduledRows.of([request.serial], [row], [0], [1], [True])
            self._deferrals.arrived(row, SampledTokens(drawing.serials, token_ids))
            self._take_tokens(drawing, token_ids)
        self._deferrals.settle()

    # One row.

    def _fail(self, request: ScheduledRequest, why: str) -> None:
        self._requests.end(request, "error", message=why, cause="failure")

    def _take_pooled(self, drawing: ScheduledRows, live: BoolVector, message: StepResult) -> None:
        """End the requests whose results have come. They have one drawing entry each, drafts or not."""
        if message.pooled is None:
            return
        entries = np.cumsum(drawing.drafts + 1) - drawing.drafts - 1
        for place, vectors in message.pooled.split().items():
            index = int(np.searchsorted(entries, place))
            if live[index]:
                live[index] = False
                request = self._running.at(int(drawing.rows[index]))
                request.first_token_at = self._requests.now
                self._requests.end(request, "stop", pooled=vectors)

    def _defer(self, drawing: ScheduledRows, live: BoolVector, index: int, plan: int) -> None:
        """Note that a row was computed and that its token comes later."""
        if live[index]:
            live[index] = False
            self._counters.rows_deferred += 1
            self._block_updates.sampled += self._deferrals.computed(drawing.rows[index : index + 1])
            self._deferrals.defer(int(drawing.rows[index]), plan)

    def _take_void(self, drawing: ScheduledRows, live: BoolVector, index: int) -> None:
        """Withdraw a row that was not computed, since its last token had been deferred."""
        if live[index]:
            live[index] = False
            self._counters.rows_void += 1
            one = slice(index, index + 1)
            self._running.withdraw(drawing.rows[one], drawing.starts[one])

    def _take_prompt_logprobs(self, request: ScheduledRequest, start: int, piece: RowLogprobs) -> None:
        """Take log-probabilities of the prompt tokens after `start`. After a preemption, some have come before."""
        known = request.num_scored - start
        if known < len(piece):
            request.num_scored = start + len(piece)
            self._outputs.prompt_logprobs(request, piece.part(known))

    # Tokens of each of some rows.

    def _take_run(self, drawing: ScheduledRows, token_ids: Int32Matrix) -> None:
        """Take the tokens of some steps of a plan, the last of which may end requests. token_ids: int32 [steps, R].

        Only the ends of the requests matter, so that their tokens may be sent several at a time.
        """
        requests, rows, steps = self._requests, drawing.rows, len(token_ids)
        by_row = np.ascontiguousarray(token_ids.T)
        self._block_updates.sampled += self._deferrals.computed(rows)
        self._block_updates.sampled.append(SampledTokens(drawing.serials, by_row.ravel(), steps))
        self._running.append_runs(rows, by_row)
        sent_in_batches, due = self._running.sent_in_batches(rows, steps)
        assert sent_in_batches.all(), "others have no plans of several steps"
        self._note_first(rows)
        for request in due:
            self._outputs.add_unsent(request)
        requests.waiting.charge_tokens(map(self._running.at, rows.tolist()), steps)
        for request in self._running.candidates(rows, token_ids[-1], requests.limits.end_tokens):
            requests.end_if_complete(request)

    def _note_first(self, rows: Int32Vector) -> None:
        """Note the time of the first token of those of `rows` that have just sampled it."""
        for request in self._running.first_sampled(rows):
            request.first_token_at = self._requests.now
            self._outputs.update_facts(request)

    def _take_computed(self, drawing: ScheduledRows, token_ids: Int32Vector) -> None:
        """Take a token of each of some rows that were computed up to it."""
        self._block_updates.sampled += self._deferrals.computed(drawing.rows)
        self._block_updates.sampled.append(SampledTokens(drawing.serials, token_ids))
        self._take_tokens(drawing, token_ids)

    def _take_tokens(self, drawing: ScheduledRows, token_ids: Int32Vector) -> None:
        """Append a token to each of some running requests, and end those that it completes."""
        requests, rows = self._requests, drawing.rows
        self._running.append_tokens(rows, token_ids)
        sent_in_batches, due = self._running.sent_in_batches(rows)
        self._note_first(rows)
        if sent_in_batches.any():
            self._outputs.tokens(drawing.serials[~sent_in_batches], token_ids[~sent_in_batches])
            for request in due:
                self._outputs.add_unsent(request)
        else:
            self._outputs.tokens(drawing.serials, token_ids)
        requests.waiting.charge_tokens(map(self._running.at, rows.tolist()))
        for request in self._running.candidates(rows, token_ids, requests.limits.end_tokens):
            requests.end_if_complete(request)
