"""The requests that hold a row of the executor's batch: in the policy's order, and by columns.

What changes with every token is kept in arrays by row, so that a step of any number of decoding rows is a few
operations on arrays and no visit to each request: a visit costs a microsecond, and its objects wake the
garbage collector. A request has its columns while it holds a row: from its admission until no step names the
row any more, also when it has ended meanwhile.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.actors.scheduler.request import Key, ScheduledRequest, State
from pageant.protocol.arrays import bools, int32, int64

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

PIECE = 16  # tokens


@dataclass(frozen=True, slots=True)
class Chunks:
    """What a step computes, by columns: of the request `serials[i]` in row `rows[i]`, `lengths[i]` tokens from
    `starts[i]`; where `draws[i]`, they are its last, and `drafts[i]` drafts may follow them. Of several steps each
    computes one of these tokens, and draws the next."""

    serials: Int64
    rows: Int32
    starts: Int32
    lengths: Int32
    draws: Bool
    drafts: Int32
    num_steps: int = 1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """That are computed, all together."""
        return int(self.lengths.sum() + self.drafts.sum())

    @property
    def ends(self) -> Int32:
        """Of each request: how many tokens there must be room for."""
        ends: Int32 = self.starts + self.lengths + self.drafts
        return ends

    @classmethod
    def of(
        cls,
        serials: Sequence[int] = (),
        rows: Sequence[int] = (),
        starts: Sequence[int] = (),
        lengths: Sequence[int] = (),
        draws: Sequence[bool] = (),
    ) -> Chunks:
        """Of plain numbers."""
        drafts = np.zeros(len(rows), np.int32)
        return cls(int64(serials), int32(rows), int32(starts), int32(lengths), bools(draws), drafts)

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.serials, self.rows, self.starts, self.lengths, self.draws, self.drafts

    def __getitem__(self, some: Bool) -> Chunks:
        serials, rows, starts, lengths, draws, drafts = (column[some] for column in self._columns())
        return Chunks(serials, rows, starts, lengths, draws, drafts, self.num_steps)

    def __add__(self, other: Chunks) -> Chunks:
        assert self.num_steps == other.num_steps == 1, "they would be of one step"
        pairs = zip(self._columns(), other._columns(), strict=True)
        serials, rows, starts, lengths, draws, drafts = map(np.concatenate, pairs)
        return Chunks(serials, rows, starts, lengths, draws, drafts)

    def has_rows(self, rows: Int32) -> bool:
        """Whether all of these are among its own."""
        return bool(np.isin(rows, self.rows).all())

    def repeated(self, num_steps: int) -> Chunks:
        """In so many steps, of chunks of one token each."""
        if num_steps == 1:
            return self
        return replace(self, lengths=np.full_like(self.lengths, num_steps), num_steps=num_steps)

    def parted(self, count: int) -> tuple[Chunks, Chunks]:
        """The first `count`, and the others."""
        if count == len(self):
            return self, Chunks.of()
        first = np.arange(len(self)) < count
        return self[first], self[~first]


class Running:
    """All of them. Iterated over, and counted, are those that have not ended, in the policy's order."""

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, num_rows: int) -> None:
        """A new executor: its batch is empty."""
        self.free_rows = list(range(num_rows))[::-1]
        self._freed_rows: list[int] = []
        self._in_order: list[ScheduledRequest] = []
        self._rows_in_order: Int32 | None = None  # made when it is needed
        self._by_row: list[ScheduledRequest | None] = [None] * num_rows
        self._outputs: list[list[int]] = [[]] * num_rows  # each request's own
        self._serials = np.zeros(num_rows, np.int64)
        self._num_tokens = np.zeros(num_rows, np.int32)  # known: prompt and output
        self._num_pending = np.zeros(num_rows, np.int32)  # tokens that the steps at hand draw
        self._num_computed = np.zeros(num_rows, np.int32)  # tokens whose KV is computed, or will be by those
        self._max_total = np.zeros(num_rows, np.int32)
        self._num_steps = np.zeros(num_rows, np.int32)  # steps at hand that name the row
        self._ended = np.zeros(num_rows, np.bool_)
        self._has_output = np.zeros(num_rows, np.bool_)
        self._in_pieces = np.zeros(num_rows, np.bool_)  # sent to the detokenizer some tokens at a time
        self._num_unsent = np.zeros(num_rows, np.int32)  # of those rows: tokens
        self._has_stops = np.zeros(num_rows, np.bool_)
        self._is_long = np.zeros(num_rows, np.bool_)
        self._in_lock_step = np.zeros(num_rows, np.bool_)  # planned only when all that was drawn is known
        self._awaits_drafts = np.zeros(num_rows, np.bool_)
        self._num_drafts = np.zeros(num_rows, np.int32)  # for the next step
        self._speculates = False  # whether any row ever went in lock-step
        self._stalled = np.zeros(num_rows, np.bool_)  # a token of theirs comes late
        self._is_plain = np.zeros(num_rows, np.bool_)  # nothing need be known of a token before the next

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return iter(self._in_order)

    # Coming and going.

    def admit(self, request: ScheduledRequest, num_cached: int) -> None:
        """A request gets a row, which the step at hand names; one that has ended too, for that step."""
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
        self._in_pieces[row] = request.goes_in_pieces
        self._num_unsent[row] = len(request.output) - request.num_sent
        self._has_stops[row] = bool(request.params.stop_token_ids)
        self._is_long[row] = request.is_long
        self._in_lock_step[row] = self._awaits_drafts[row] = False
        self._num_drafts[row] = 0
        self._stalled[row] = False
        self._is_plain[row] = request.is_plain
        if request.state is State.RUNNING:
            bisect.insort(self._in_order, request, key=_key)
            self._rows_in_order = None

    def remove(self, request: ScheduledRequest) -> None:
        """A request runs no more: it has ended, or gives way. It holds its row until `release`."""
        del self._in_order[bisect.bisect_left(self._in_order, request.key, key=_key)]
        self._rows_in_order = None
        self._ended[request.held_row] = request.state is State.ENDED

    def release(self, request: ScheduledRequest) -> None:
        """Its row may be another's."""
        row = request.held_row
        self._by_row[row] = request.row = None
        self._outputs[row] = []
        self._freed_rows.append(row)
        self.free_rows.append(row)

    def take_freed_rows(self) -> list[int]:
        """Those that the executor has not been told of."""
        freed, self._freed_rows = self._freed_rows, []
        return freed

    # One step.

    def choose(self, budget: int, long_chunk_max: int) -> Chunks:
        """What is next of them: one token for each that decodes, then prefills in order, within the budget.

        They are in the policy's order, so that memory goes to whom it favours.
        """
        rows = self._rows()
        starts = self._num_computed[rows]
        wanted = self._num_uncomputed(rows)
        if self._speculates:
            wanted = np.where(self._is_held(rows), np.int32(0), wanted)
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
            lengths[index] = min(int(wanted[index]), max(0, left), most)
            left -= int(lengths[index])
        drafts = self._drafts_within(rows, decoding & (lengths == 1), left)
        chunks = Chunks(self._serials[rows], rows, starts, lengths, lengths == wanted, drafts)
        some = lengths > 0
        return chunks if some.all() else chunks[some]

    def num_steps(self, chunks: Chunks, most: int) -> int:
        """How many steps these can go one after another, without a word in between; `most`, if none comes to its end
        before, but one where not all that run decode, or where somebody is to know of each token."""
        rows = chunks.rows
        if most <= 1 or not len(rows) or not self._is_plain[self._rows()].all():
            return 1
        if not chunks.draws.all() or chunks.num_tokens > len(rows):
            return 1
        left = self._max_total[rows] - self._num_tokens[rows] - self._num_pending[rows]
        return max(1, min(most, int(left.min())))

    def _is_held(self, rows: Int32) -> Bool:
        """Whether what comes next must be known first."""
        held: Bool = self._awaits_drafts[rows] | (self._in_lock_step[rows] & (self._num_pending[rows] > 0))
        return held

    def _drafts_within(self, rows: Int32, decoding: Bool, budget: int) -> Int32:
        """How many drafts each row may have verified: as many as there are, one row after another."""
        if not self._speculates:
            return np.zeros(len(rows), np.int32)
        drafts = np.where(decoding, self._num_drafts[rows], np.int32(0))
        before = np.cumsum(drafts) - drafts
        fitting: Int32 = np.clip(budget - before, 0, drafts).astype(np.int32)
        return fitting

    def ends_with(self, chunks: Chunks, lookahead: int) -> Int32:
        """Of each request: how many tokens there must be room for, with so many that may be drafted after it draws,
        as far as it can still grow."""
        ahead = np.where(chunks.draws, np.int32(lookahead), np.int32(0))
        further: Int32 = np.minimum(chunks.ends + ahead, self._max_total[chunks.rows])
        return np.maximum(chunks.ends, further)

    def hold(self, rows: Int32, in_lock_step: Bool, awaiting_drafts: Bool | None = None) -> None:
        """Which of these rows are not planned ahead, and to which of those drafts are on their way."""
        self._in_lock_step[rows] = in_lock_step
        self._awaits_drafts[rows] = False if awaiting_drafts is None else awaiting_drafts
        self._num_drafts[rows] = 0
        self._speculates |= bool(in_lock_step.any())

    def are_in_lock_step(self, rows: Int32) -> Bool:
        """Which of these rows are not planned ahead."""
        return self._in_lock_step[rows]

    def num_in_lock_step(self) -> int:
        """How many of the running are not planned ahead."""
        return int(np.count_nonzero(self._in_lock_step[self._rows()])) if self._speculates else 0

    def are_pending(self, rows: Int32) -> Bool:
        """Which of these rows steps at hand draw tokens for."""
        pending: Bool = self._num_pending[rows] > 0
        return pending

    def room(self, rows: Int32) -> Int32:
        """How many drafts of each row can be right, so that the token after them is its last."""
        room: Int32 = np.maximum(self._max_total[rows] - self._num_tokens[rows] - 1, 0)
        return room

    def num_tokens(self, rows: Int32) -> Int32:
        """How many are known of each row: prompt and output."""
        return self._num_tokens[rows]

    def token(self, row: int, position: int) -> int:
        """An output token of a row."""
        return self._outputs[row][position - len(self.at(row).prompt)]

    def awaits_drafts(self, request: ScheduledRequest) -> bool:
        """Whether a request runs, and drafts are on their way to it."""
        return request.state is State.RUNNING and bool(self._awaits_drafts[request.held_row])

    def are_running(self, rows: Int32) -> Bool:
        """Which of the rows of a step's requests run on."""
        running: Bool = ~self._ended[rows]
        return running

    def drafted(self, request: ScheduledRequest, count: int) -> None:
        """So many drafts have come; none, if it was waited for in vain."""
        self._awaits_drafts[request.held_row] = False
        self._num_drafts[request.held_row] = count

    def drop_drafts(self, rows: Int32) -> None:
        """They are not verified."""
        self._num_drafts[rows] = 0

    def accepted(self, rows: Int32, counts: Int32) -> None:
        """So many drafts of these rows were right: they are computed."""
        self._num_computed[rows] += counts

    def enter(self, chunks: Chunks) -> None:
        """A step at hand names these rows."""
        self._num_steps[chunks.rows] += 1

    def leave(self, chunks: Chunks) -> list[ScheduledRequest]:
        """A step no longer does. Returns those of its requests that have ended, and that no other names."""
        rows = chunks.rows
        self._num_steps[rows] -= 1
        gone = rows[self._ended[rows] & (self._num_steps[rows] == 0)]
        return [self.at(row) for row in gone.tolist()]

    def planned(self, chunks: Chunks) -> None:
        """They will be computed, but for what follows something that was taken back since it was asked for."""
        follows = chunks.starts <= self._num_computed[chunks.rows]
        self._num_computed[chunks.rows] += chunks.lengths * follows
        self._num_pending[chunks.rows] += chunks.draws * np.int32(chunks.num_steps)
        if self._speculates:
            self._num_drafts[chunks.rows] = 0

    def computed(self, chunks: Chunks) -> Bool:
        """They have been. Returns which of them run on."""
        self._num_pending[chunks.rows] -= chunks.draws * np.int32(chunks.num_steps)
        return self.are_running(chunks.rows)

    def drew(self, rows: Int32, token_ids: Int32) -> None:
        """Appends the tokens that were drawn for these rows."""
        outputs = self._outputs
        for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True):
            outputs[row].append(token)
        self._num_tokens[rows] += 1

    def in_pieces(self, rows: Int32) -> tuple[Bool, list[ScheduledRequest]]:
        """Which of rows that drew are sent in pieces, and those of whom one is due: the first token, or many."""
        some = self._in_pieces[rows]
        rows = rows[some]
        self._num_unsent[rows] += 1
        due = rows[~self._has_output[rows] | (self._num_unsent[rows] >= PIECE)]
        self._num_unsent[due] = 0
        return some, [self.at(row) for row in due.tolist()]

    def first_drawn(self, rows: Int32) -> list[ScheduledRequest]:
        """Those of rows that drew which have done so for the first time."""
        first = rows[~self._has_output[rows]]
        self._has_output[first] = True
        return [self.at(row) for row in first.tolist()]

    def candidates(self, rows: Int32, token_ids: Int32, end_tokens: Iterable[int]) -> list[ScheduledRequest]:
        """Those of rows that drew which may have ended with that."""
        some = self._has_stops[rows] | (self._num_tokens[rows] >= self._max_total[rows])
        for token in end_tokens:
            some |= token_ids == token
        return [self.at(row) for row in rows[some].tolist()]

    # Tokens that come late.

    def stall(self, row: int) -> None:
        """The token that a step was to draw is still pending, and nothing after it can be computed."""
        self._num_pending[row] += 1
        self._stalled[row] = True

    def arrived(self, row: int) -> None:
        """It is there."""
        self._num_pending[row] -= 1

    def go_on(self, row: int) -> None:
        """The row may be planned again."""
        self._stalled[row] = False

    def take_back(self, rows: Int32, starts: Int32) -> None:
        """What steps were to compute of these rows from there on is not computed."""
        self._num_computed[rows] = np.minimum(self._num_computed[rows], starts)

    def is_stalled(self, row: int) -> bool:
        """Whether nothing is planned of a row."""
        return bool(self._stalled[row])

    def is_row_named(self, row: int) -> bool:
        """Whether a step at hand names a row."""
        return bool(self._num_steps[row])

    # Looking in.

    def at(self, row: int) -> ScheduledRequest:
        """Who holds a row."""
        request = self._by_row[row]
        assert request is not None, f"nobody holds row {row}"
        return request

    def in_no_step(self, rows: Sequence[int]) -> list[ScheduledRequest]:
        """Those of some rows that run, and that no step at hand names; with how much of them is computed."""
        found = [self.at(row) for row in rows if not (self._ended[row] or self._num_steps[row])]
        for request in found:
            request.num_computed = int(self._num_computed[request.held_row])
        return found

    def is_named(self, request: ScheduledRequest) -> bool:
        """Whether a step at hand names its row."""
        return self.is_row_named(request.held_row)

    def is_prefilling(self, request: ScheduledRequest) -> bool:
        """Whether more than its last token is still to be planned."""
        return request.row is None or bool(self._num_uncomputed(np.array([request.row])) > 1)

    def num_long_prefills(self) -> int:
        """How many long prompts are being computed."""
        if not self._is_long.any():
            return 0
        rows = self._rows()
        return int(np.count_nonzero(self._is_long[rows] & (self._num_uncomputed(rows) > 1)))

    def check_integrity(self, at_hand: Sequence[Chunks]) -> None:
        """Asserts what must always hold, given all chunks of all steps at hand."""
        assert self._in_order == sorted(self._in_order, key=_key), "the running are not in the policy's order"
        rows = np.concatenate([int32(), *(chunks.rows for chunks in at_hand)])
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

    def _num_uncomputed(self, rows: Int32 | Int64) -> Int32:
        """Tokens whose KV is still to be planned: 1 for a request that is decoding, and 0 for one that will end
        by its length when the pending tokens are there, or waits for one that is late."""
        known = self._num_tokens[rows] + self._num_pending[rows]
        more = (known < self._max_total[rows]) & ~self._stalled[rows]
        return np.where(more, known - self._num_computed[rows], np.int32(0))

    def _rows(self) -> Int32:
        if self._rows_in_order is None:
            rows = [request.row for request in self._in_order]
            self._rows_in_order = np.array(rows, np.int32)
        return self._rows_in_order


def _key(request: ScheduledRequest) -> Key:
    return request.key
