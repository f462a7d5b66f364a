"""The requests that hold a row of the executor's batch: in the policy's order, and by columns.

State that changes with every token is kept in arrays by row. A step of any number of decoding rows is then a
few operations on arrays and no visit to each request: a visit costs a microsecond, and its objects wake the
garbage collector. A request has its columns while it holds a row: from its admission until no step names the
row any more, even if it has ended meanwhile.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pageant.actors.scheduler.lock_step import LockStep
from pageant.actors.scheduler.request import Key, ScheduledRequest, State
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.actors.scheduler.waves import Waves
from pageant.protocol.arrays import int32

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Tokens of a request that are sent to the detokenizer at a time, if only its end matters.
TOKENS_SENT_TOGETHER = 16


class Running:
    """The requests that hold rows. Iteration and length cover those that have not ended, in the policy's order.

    All arrays have one entry per row of the batch. Entries of rows without a request mean nothing.
    """

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, num_rows: int, num_waves: int = 1) -> None:
        """Start with a new executor, whose batch is empty, and whose rows decode in so many waves."""
        # Rows that no request holds. Held and free rows together are all rows, each once.
        self.free_rows = list(range(num_rows))[::-1]
        # Free rows of which no plan has told the executor.
        self._freed_rows: list[int] = []
        # Running requests in the policy's order; ended ones are left out.
        self._in_order: list[ScheduledRequest] = []
        # int32 [running]: their rows; None until it is needed again.
        self._rows_in_order: Int32 | None = None
        # The request that holds each row, or None.
        self._by_row: list[ScheduledRequest | None] = [None] * num_rows
        # The output list of each row's request; the very list of the request.
        self._outputs: list[list[int]] = [[]] * num_rows
        # int64: the serial of each row's request.
        self._serials = np.zeros(num_rows, np.int64)
        # int32: known tokens, prompt and output.
        self._num_tokens = np.zeros(num_rows, np.int32)
        # int32: tokens that steps under way sample.
        self._num_pending = np.zeros(num_rows, np.int32)
        # int32: tokens whose KV is computed, or will be by steps under way.
        self._num_computed = np.zeros(num_rows, np.int32)
        # int32: tokens at which the request ends by length.
        self._max_total = np.zeros(num_rows, np.int32)
        # int32: steps under way that name the row. A row is freed only at 0.
        self._num_steps = np.zeros(num_rows, np.int32)
        # bool: the row's request has ended, and steps under way still name it.
        self._ended = np.zeros(num_rows, np.bool_)
        # bool: the first token has been sampled.
        self._has_output = np.zeros(num_rows, np.bool_)
        # bool: tokens are sent to the detokenizer several at a time.
        self._sent_in_batches = np.zeros(num_rows, np.bool_)
        # int32: tokens not sent to the detokenizer, of rows in `_sent_in_batches`.
        self._num_unsent = np.zeros(num_rows, np.int32)
        # bool: the request has stop tokens of its own.
        self._has_stops = np.zeros(num_rows, np.bool_)
        # bool: the prompt is computed in chunks beside few others like it.
        self._is_long = np.zeros(num_rows, np.bool_)
        # Which rows decode together.
        self.waves = Waves(num_rows, num_waves)
        # Rows that speculate.
        self.lock_step = LockStep(num_rows)
        # bool: a sampled token comes late; nothing of the row is planned.
        self._stalled = np.zeros(num_rows, np.bool_)
        # bool: the next token can be computed before the last one is known elsewhere.
        self._allows_multi_step = np.zeros(num_rows, np.bool_)

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return iter(self._in_order)

    # Coming and going.

    def admit(self, request: ScheduledRequest, num_cached: int) -> None:
        """Give a request a row, which the step under way names; an ended request too, for that step."""
        row = request.row = self.free_rows.pop()
        self._by_row[row], self._outputs[row] = request, request.output
        self._serials[row] = request.serial
        self._num_tokens[row] = request.num_tokens
        self._num_pending[row] = 0
        self._num_computed[row] = num_cached
        self._max_total[row] = request.max_total
        self._num_steps[row] = 1
        self._ended[row] = request.state is State.ENDED
        self._has_output[row] = request.first_token_at is not None
        self._sent_in_batches[row] = request.only_end_matters
        self._num_unsent[row] = len(request.output) - request.num_sent
        self._has_stops[row] = bool(request.params.stop_token_ids)
        self._is_long[row] = request.is_long
        self.waves.admit(row, self._rows())
        self.lock_step.admit(row)
        self._stalled[row] = False
        self._allows_multi_step[row] = request.allows_multi_step
        if request.state is State.RUNNING:
            bisect.insort(self._in_order, request, key=_key)
            self._rows_in_order = None

    def remove(self, request: ScheduledRequest) -> None:
        """Note that a request runs no more: it has ended, or was preempted. It holds its row until `release`."""
        del self._in_order[bisect.bisect_left(self._in_order, request.key, key=_key)]
        self._rows_in_order = None
        self._ended[request.held_row] = request.state is State.ENDED

    def release(self, request: ScheduledRequest) -> None:
        """Free a request's row."""
        row = request.held_row
        self._by_row[row] = request.row = None
        self._outputs[row] = []
        self._freed_rows.append(row)
        self.free_rows.append(row)

    def take_freed_rows(self) -> list[int]:
        """Return the rows that were freed since the last plan."""
        freed, self._freed_rows = self._freed_rows, []
        return freed

    # One step.

    def choose(self, budget: int, long_chunk_max: int) -> ScheduledRows:
        """Return the rows of the next step: one token for each that decodes, then prefills in order, within the
        budget.

        They are in the policy's order, so that memory goes to those that it favours.
        """
        rows = self._rows()
        starts = self._num_computed[rows]
        wanted = self._num_uncomputed(rows)
        if self.lock_step.has_begun:
            wanted = np.where(self.lock_step.are_held(rows, self._num_pending), np.int32(0), wanted)
        if self.waves.count > 1:
            wanted *= self.waves.are_in_turn(rows, wanted == 1, self._num_pending)
        lengths = wanted
        decoding = wanted == 1
        left = budget - int(np.count_nonzero(decoding))
        if left < 0:
            lengths = np.where(decoding & (np.cumsum(decoding) > budget), 0, wanted)
        prefilling = np.flatnonzero(wanted > 1).tolist()
        if prefilling:
            lengths = lengths.copy()
        for index in prefilling:
            most = long_chunk_max if self._is_long[rows[index]] else left
            length, request = min(int(wanted[index]), max(0, left), most), self.at(int(rows[index]))
            lengths[index] = request.chunk(int(starts[index]), length)
            left -= int(lengths[index])
        drafts = self.lock_step.drafts_within(rows, decoding & (lengths == 1), left)
        chunks = ScheduledRows(self._serials[rows], rows, starts, lengths, lengths == wanted, drafts)
        some = lengths > 0
        return chunks if some.all() else chunks[some]

    def num_steps(self, chunks: ScheduledRows, most: int) -> int:
        """Return how many steps, at most `most`, these rows can go without any message in between.

        The answer is 1 unless all running rows decode and allow it; it ends before any row reaches its length.
        """
        rows = chunks.rows
        if most <= 1 or not len(rows) or not self._allows_multi_step[self._rows()].all():
            return 1
        if not chunks.draws.all() or chunks.num_tokens > len(rows):
            return 1
        left = self._max_total[rows] - self._num_tokens[rows] - self._num_pending[rows]
        return max(1, min(most, int(left.min())))

    def ends_with(self, chunks: ScheduledRows, lookahead: int) -> Int32:
        """Return the number of tokens that each request needs slots for, with `lookahead` drafts after its
        sample: int32 [R].

        No request needs more slots than its maximal length.
        """
        ahead = np.where(chunks.draws, np.int32(lookahead), np.int32(0))
        further: Int32 = np.minimum(chunks.ends + ahead, self._max_total[chunks.rows])
        return np.maximum(chunks.ends, further)

    def num_in_lock_step(self) -> int:
        """Return how many running rows are not planned ahead."""
        return self.lock_step.count(self._rows()) if self.lock_step.has_begun else 0

    def are_pending(self, rows: Int32) -> Bool:
        """Return which of `rows`, int32 [N], have tokens that steps under way sample: bool [N]."""
        return np.greater(self._num_pending[rows], 0)

    def max_drafts(self, rows: Int32) -> Int32:
        """Return the most drafts of each row that can be accepted before its last token: int32 [N] in and out."""
        most: Int32 = np.maximum(self._max_total[rows] - self._num_tokens[rows] - 1, 0)
        return most

    def num_tokens(self, rows: Int32) -> Int32:
        """Return the known tokens of each row, prompt and output: int32 [N] in and out."""
        return self._num_tokens[rows]

    def token(self, row: int, position: int) -> int:
        """Return the output token of a row at a position of its sequence."""
        return self._outputs[row][position - len(self.at(row).prompt)]

    def awaits_drafts(self, request: ScheduledRequest) -> bool:
        """Tell whether a request runs and waits for drafts."""
        return request.state is State.RUNNING and self.lock_step.awaits_drafts(request.held_row)

    def are_running(self, rows: Int32) -> Bool:
        """Return which of `rows`, int32 [N], belong to requests that have not ended: bool [N]."""
        running: Bool = ~self._ended[rows]
        return running

    def accepted(self, rows: Int32, counts: Int32) -> None:
        """Count accepted drafts as computed tokens. rows, counts: int32 [N]."""
        self._num_computed[rows] += counts

    def enter(self, chunks: ScheduledRows) -> None:
        """Note that a step under way names these rows."""
        self._num_steps[chunks.rows] += 1

    def leave(self, chunks: ScheduledRows) -> list[ScheduledRequest]:
        """Note that a step names these rows no longer. Return its ended requests that no other step names."""
        rows = chunks.rows
        self._num_steps[rows] -= 1
        gone = rows[self._ended[rows] & (self._num_steps[rows] == 0)]
        return [self.at(row) for row in gone.tolist()]

    def planned(self, chunks: ScheduledRows) -> None:
        """Count the tokens of a plan as computed, except where they follow tokens that were withdrawn since."""
        follows = chunks.starts <= self._num_computed[chunks.rows]
        self._num_computed[chunks.rows] += chunks.lengths * follows
        self._num_pending[chunks.rows] += chunks.draws * np.int32(chunks.num_steps)
        self.lock_step.planned(chunks.rows)
        self.waves.planned()

    def computed(self, chunks: ScheduledRows) -> Bool:
        """Note that a plan is over. Return which of its rows belong to requests that have not ended: bool [R]."""
        self._num_pending[chunks.rows] -= chunks.draws * np.int32(chunks.num_steps)
        return self.are_running(chunks.rows)

    def append_tokens(self, rows: Int32, token_ids: Int32) -> None:
        """Append a sampled token to each of N rows. rows, token_ids: int32 [N]."""
        outputs = self._outputs
        for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True):
            outputs[row].append(token)
        self._num_tokens[rows] += 1

    def append_runs(self, rows: Int32, token_ids: Int32) -> None:
        """Append sampled tokens to each of N rows. rows: int32 [N]. token_ids: int32 [N, steps]."""
        for row, tokens in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self._outputs[row] += tokens
        self._num_tokens[rows] += token_ids.shape[1]

    def steps_to_length(self, rows: Int32) -> int:
        """Return how many more steps there are before any of `rows`, int32 [N], may end, but for end tokens."""
        left: Int32 = self._max_total[rows] - self._num_tokens[rows]
        return 1 if self._has_stops[rows].any() else int(left.min())

    def sent_in_batches(self, rows: Int32, each: int = 1) -> tuple[Bool, list[ScheduledRequest]]:
        """Return which of `rows`, int32 [N], are sent several tokens at a time (bool [N]), and the requests to
        send now that `each` more tokens are known.

        A request is due with its first token, and then with every `TOKENS_SENT_TOGETHER`.
        """
        some = self._sent_in_batches[rows]
        rows = rows[some]
        self._num_unsent[rows] += each
        due = rows[~self._has_output[rows] | (self._num_unsent[rows] >= TOKENS_SENT_TOGETHER)]
        self._num_unsent[due] = 0
        return some, [self.at(row) for row in due.tolist()]

    def first_sampled(self, rows: Int32) -> list[ScheduledRequest]:
        """Return the requests of `rows`, int32 [N], that have just sampled their first token."""
        first = rows[~self._has_output[rows]]
        self._has_output[first] = True
        return [self.at(row) for row in first.tolist()]

    def candidates(self, rows: Int32, token_ids: Int32, end_tokens: Iterable[int]) -> list[ScheduledRequest]:
        """Return the requests of N rows that may have ended with the token just sampled. rows, token_ids: int32
        [N].
        """
        some = self._has_stops[rows] | (self._num_tokens[rows] >= self._max_total[rows])
        for token in end_tokens:
            some |= token_ids == token
        return [self.at(row) for row in rows[some].tolist()]

    # Tokens that come late.

    def stall(self, row: int) -> None:
        """Mark a row whose sampled token comes late: nothing after it can be computed."""
        self._num_pending[row] += 1
        self._stalled[row] = True

    def arrived(self, row: int) -> None:
        """Note that a row's late token has come."""
        self._num_pending[row] -= 1

    def go_on(self, row: int) -> None:
        """Let a stalled row be planned again."""
        self._stalled[row] = False

    def withdraw(self, rows: Int32, starts: Int32) -> None:
        """Withdraw tokens of N rows from position starts[i] on, which are not computed. rows, starts: int32
        [N].
        """
        self._num_computed[rows] = np.minimum(self._num_computed[rows], starts)

    def is_stalled(self, row: int) -> bool:
        """Tell whether a row waits for a late token, and nothing of it is planned."""
        return bool(self._stalled[row])

    def is_row_named(self, row: int) -> bool:
        """Tell whether a step under way names a row."""
        return bool(self._num_steps[row])

    # Looking in.

    def at(self, row: int) -> ScheduledRequest:
        """Return the request that holds a row."""
        request = self._by_row[row]
        assert request is not None, f"nobody holds row {row}"
        return request

    def in_no_step(self, rows: Sequence[int]) -> list[ScheduledRequest]:
        """Return the running requests of some rows that no step under way names, with their `num_computed` set."""
        found = [self.at(row) for row in rows if not (self._ended[row] or self._num_steps[row])]
        for request in found:
            request.num_computed = int(self._num_computed[request.held_row])
        return found

    def is_named(self, request: ScheduledRequest) -> bool:
        """Tell whether a step under way names a request's row."""
        return self.is_row_named(request.held_row)

    def is_prefilling(self, request: ScheduledRequest) -> bool:
        """Tell whether more than a request's last token is still to be planned."""
        return request.row is None or bool(self._num_uncomputed(np.array([request.row])) > 1)

    def num_long_prefills(self) -> int:
        """Return how many long prompts are being computed."""
        if not self._is_long.any():
            return 0
        rows = self._rows()
        return int(np.count_nonzero(self._is_long[rows] & (self._num_uncomputed(rows) > 1)))

    def check_integrity(self, under_way: Sequence[ScheduledRows]) -> None:
        """Assert the invariants, given the scheduled rows of all steps under way."""
        assert self._in_order == sorted(self._in_order, key=_key), "the running are not in the policy's order"
        rows = np.concatenate([int32(), *(chunks.rows for chunks in under_way)])
        expected = np.bincount(rows, minlength=len(self._by_row))
        assert (self._num_steps == expected).all(), (
            f"steps name rows {expected.tolist()} times, {self._num_steps} are counted"
        )
        held = [row for row, request in enumerate(self._by_row) if request is not None]
        assert sorted(held + self.free_rows) == list(range(len(self._by_row))), (
            "a row belongs to two, or none"
        )
        running = {request.held_row for request in self._in_order}
        assert running == {row for row in held if not self._ended[row]}, "rows of the running, and others"
        for row in held:
            request = self.at(row)
            assert request.row == row, f"request {request.serial} holds another row than {row}"
            assert self._outputs[row] is request.output, f"row {row} writes to another's output"
            assert self._num_steps[row] or row in running, f"request {request.serial} ended, and holds a row"
            pending = self._num_pending[row] and not self._stalled[row]
            assert self._num_steps[row] or not pending, "no step draws what is pending"
            assert row not in running or self._num_tokens[row] == request.num_tokens, "tokens are miscounted"

    def num_uncomputed(self) -> int:
        """Return the known tokens of all running requests that no step has computed or computes."""
        return int(np.maximum(self._num_uncomputed(self._rows()), 0).sum()) if len(self) else 0

    def _num_uncomputed(self, rows: Int32 | Int64) -> Int32:
        """Return the number of tokens to plan for each row: int32 [N].

        It is 1 for a request that decodes, 0 for one that ends with its pending tokens or waits for a late one.
        """
        known = self._num_tokens[rows] + self._num_pending[rows]
        more = (known < self._max_total[rows]) & ~self._stalled[rows]
        return np.where(more, known - self._num_computed[rows], np.int32(0))

    def _rows(self) -> Int32:
        if self._rows_in_order is None:
            self._rows_in_order = int32([request.held_row for request in self._in_order])
        return self._rows_in_order


def _key(request: ScheduledRequest) -> Key:
    return request.key
