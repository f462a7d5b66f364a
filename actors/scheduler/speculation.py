"""Speculation in the scheduler: which rows get drafts, how many, and which drafts were right.

A row with drafts goes in lock-step: its next step is planned when its tokens are known and its drafts have
come. The number of drafts of a row is decided anew for each step (`DraftBudget`). A row without drafts is planned
ahead as others are, and now and then gets a shadow draft, which is compared but not computed (`ShadowDrafts`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pageant.actors.scheduler.draft_budget import DraftBudget
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.row_drafts import NO_ROW_DRAFTS, RowDrafts, join_drafts, split_drafts
from pageant.actors.scheduler.running import Running
from pageant.actors.scheduler.scheduled_rows import ScheduledRows
from pageant.actors.scheduler.shadow_drafts import ShadowDrafts
from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Drafted, Propose, Proposed, Speculation
from pageant.protocol.stepping import StepResult
from pageant.protocol.verification import NO_DRAFTS, Drafts

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass
class SpeculationCounters:
    """Counts of drafts since the start."""

    drafts_proposed: int = 0
    """Drafts that were verified."""
    drafts_accepted: int = 0
    drafts_ignored: int = 0
    """Drafts that were no token ids, or more than were asked for."""
    proposals: int = 0
    drafter_microseconds: int = 0
    """Time spent on making drafts."""
    proposals_late: int = 0
    verifications: int = 0
    """Verified rows."""


@dataclass(frozen=True)
class _Asked:
    """A `Propose` that is not answered. `began` and `deadline` are seconds of the shell's clock."""

    serials: list[int]
    wanted: Int32
    began: float
    deadline: float
    # Some rows wait for the answer. False if it is for shadow drafts alone.
    is_awaited: bool


class Speculator:
    """Drafts by row: their source, and how many each row gets. `now` is seconds of the shell's clock.

    Args:
        vocab_size: the model's vocabulary size; None takes any token id that is not negative.
    """

    def __init__(self, settings: Speculation, vocab_size: int | None, running: Running) -> None:
        self.settings = settings
        self.counters = SpeculationCounters()
        # Accepted drafts, by place among a row's drafts.
        self.accepted_at = [0] * settings.tokens
        self._vocab_size = vocab_size
        self._running = running
        # A drafter is there to be asked.
        self._up = settings.on_device
        self._number = 0
        # Unanswered messages to the drafter, by number.
        self._asked: dict[int, _Asked] = {}
        # The number of tokens that the drafter knows of each sequence, by serial.
        self._followed: dict[int, int] = {}
        # Serials that the drafter has not been told to forget.
        self._closed: list[int] = []
        self.reset(0)

    def count(self) -> dict[str, int]:
        """Return the counters, with the accepted drafts by place among a row's."""
        return vars(self.counters) | {f"drafts_accepted_at_{i}": n for i, n in enumerate(self.accepted_at)}

    def reset(self, num_rows: int) -> None:
        """Start with a new executor: no request has a row."""
        self.draft_budget = DraftBudget(self.settings, num_rows)
        # Drafts of the next step, by row.
        self._drafts: dict[int, RowDrafts] = {}
        # Memory is short: no slots are asked for ahead of drafts.
        self._is_short = False
        # int32 [num_rows]: drafts asked of the executor, for rows in lock-step.
        self._wanted = np.zeros(num_rows, np.int32)
        self._shadow_drafts = ShadowDrafts(num_rows)

    # The drafter, coming and live.

    def drafter_up(self) -> None:
        """Start to use a drafter, which knows no sequence yet."""
        self._up = True

    def drafter_down(self) -> list[int]:
        """Forget a drafter that died. Return the serials that were waiting for it."""
        self._up = self.settings.on_device
        self._followed.clear()
        self._closed.clear()
        waiting = [serial for asked in self._asked.values() for serial in asked.serials]
        self._asked.clear()
        return waiting

    def late(self, now: float) -> list[int]:
        """Return the serials that have waited for too long. Drafts that still come for them are ignored."""
        numbers = [number for number, asked in self._asked.items() if asked.deadline <= now]
        return [serial for number in numbers for serial in self._asked.pop(number).serials]

    @property
    def next_deadline(self) -> float | None:
        """Return the time at which `late` has something to do, or None."""
        return min((asked.deadline for asked in self._asked.values()), default=None)

    @property
    def awaits_drafts(self) -> bool:
        """Tell whether rows wait for an answer of the drafter."""
        return any(asked.is_awaited for asked in self._asked.values())

    # Requests, coming and live.

    def admit(self, request: ScheduledRequest) -> None:
        """Start a new request in its row."""
        self._drafts.pop(request.held_row, None)
        self.draft_budget.admit(request.held_row)
        self._shadow_drafts.forget(request.held_row)
        self._running.lock_step.hold(int32([request.held_row]), np.array([self._up]))

    def forget(self, request: ScheduledRequest) -> None:
        """Forget a request that has ended."""
        if self._followed.pop(request.serial, None) is not None:
            self._closed.append(request.serial)

    # One step.

    def plan(self, chunks: ScheduledRows) -> tuple[Drafts, Int32]:
        """Return a step's drafts, and how many the executor proposes for each sampling row: int32 [D], or
        empty.
        """
        some = chunks.drafts > 0
        pairs = zip(chunks.rows[some].tolist(), chunks.drafts[some].tolist(), strict=True)
        found = [self._drafts.pop(row).first(count) for row, count in pairs]
        drafts = join_drafts(chunks.drafts, found) if found else NO_DRAFTS
        if not self.settings.on_device:
            return drafts, int32()
        rows = chunks.rows[chunks.draws]
        wanted = self._drafts_for(rows)
        self._running.lock_step.hold(rows, (wanted > 0) | (chunks.drafts[chunks.draws] > 0))
        self._wanted[rows] = wanted
        return drafts, wanted + self._due(rows, wanted)

    @property
    def holds_all(self) -> bool:
        """Tell whether to plan nothing before all tokens are known and all drafts have come, so that rows share
        steps.
        """
        held = self._running.num_in_lock_step()
        return held > 0 and self.draft_budget.waits(len(self._running), held)

    def room_for(self, chunks: ScheduledRows) -> Int32:
        """Return the number of tokens that each row needs slots for: int32 [R].

        A proposer on the device writes the KV of its drafts before they are planned.
        """
        if not self.settings.on_device or self._is_short:
            return chunks.ends
        return self._running.ends_with(chunks, self.settings.tokens)

    def make_room(self, refused: ScheduledRows) -> bool:
        """Drop the drafts of rows that were refused memory. Return whether that may be enough."""
        was_short, self._is_short = self._is_short, self.settings.on_device
        some = refused.rows[refused.drafts > 0]
        for row in some.tolist():
            self._drafts.pop(row, None)
        self._running.lock_step.drop_drafts(some)
        return len(some) > 0 or self._is_short != was_short

    def verified(self, rows: Int32, live: Bool, drafts: Drafts, accepted: Int32) -> None:
        """Record verified drafts of running requests.

        rows: int32 [N]. live: bool [N], whether the row's request still runs. accepted: int32 [N].
        """
        some = live & (drafts.counts > 0)
        self.counters.verifications += int(some.sum())
        self.counters.drafts_proposed += int(drafts.counts[some].sum())
        rows, counts, accepted = rows[some], drafts.lengths[some], accepted[some]
        self.counters.drafts_accepted += int(accepted.sum())
        for place in range(int(accepted.max(initial=0))):
            self.accepted_at[place] += int((accepted > place).sum())
        self._running.accepted(rows, accepted)
        self.draft_budget.verified(rows, counts, accepted)

    def stepped(self, chunks: ScheduledRows, result: StepResult, now: float) -> Propose | None:
        """Take note of a step whose tokens were taken. Return the next message to the drafter, or None."""
        self._is_short = False
        if (chunks.lengths == 1).all():
            self.draft_budget.stepped(chunks.num_tokens, result.seconds - result.drafting_seconds)
        drawing = chunks[chunks.draws]
        live = self._running.are_running(drawing.rows)
        if self._shadow_drafts:
            self._judge_shadow_drafts(drawing.rows[live])
        if not self.settings.on_device:
            return self._ask(drawing.rows[live], now)
        if len(result.draft_counts) == len(drawing):
            self._take_device_drafts(drawing.rows, live, result)
        return None

    def _take_device_drafts(self, rows: Int32, live: Bool, result: StepResult) -> None:
        """Take the drafts that the executor made for the rows of a step."""
        made = result.draft_counts > 0
        held = self._running.lock_step.are_in(rows)
        if (made & held).any():
            self._drafted(result.drafting_seconds, result.drafting_seconds)
        elif made.any():
            self.draft_budget.spent(result.drafting_seconds)
        guesses = split_drafts(result.draft_counts, result.draft_ids, result.draft_parents)
        for index in np.flatnonzero(live & made).tolist():
            request = self._running.at(int(rows[index]))
            if self._running.is_stalled(request.held_row):
                # The row's last token is still to come.
                continue
            most = int(self._wanted[request.held_row]) if held[index] else 1
            guess = self._checked(guesses[index], most)
            if held[index]:
                self._take(request, guess.first(self._room(request)))
            elif len(guess):
                self._shadow_drafts.record(request.held_row, request.num_tokens, int(guess.token_ids[0]))

    def _judge_shadow_drafts(self, rows: Int32) -> None:
        """Compare shadow drafts of these rows with the tokens that were sampled."""
        rows, positions, guessed = self._shadow_drafts.take_known(rows, self._running.num_tokens(rows))
        drawn = [
            self._running.token(row, at) for row, at in zip(rows.tolist(), positions.tolist(), strict=True)
        ]
        self.draft_budget.tried(rows, guessed == int32(drawn))

    def _drafts_for(self, rows: Int32) -> Int32:
        """Return how many drafts each row gets: no more than can be accepted before its last token. int32 [N]
        in and out.
        """
        if not self._up:
            return np.zeros(len(rows), np.int32)
        return np.minimum(self.draft_budget.wanted(rows), self._running.max_drafts(rows)).astype(np.int32)

    def _due(self, rows: Int32, wanted: Int32) -> Bool:
        """Return which rows get a shadow draft: bool [N]. rows, wanted: int32 [N]."""
        found = np.zeros(len(rows), np.bool_)
        if self._up and not wanted.all():
            none = wanted == 0
            found[none] = self.draft_budget.due(rows[none])
            found &= self._running.max_drafts(rows) > 0
        return found

    def _room(self, request: ScheduledRequest) -> int:
        """Return the most drafts that can be accepted before a request's last token."""
        return max(0, request.max_total - request.num_tokens - 1)

    def _ask(self, rows: Int32, now: float) -> Propose | None:
        """Return the message that asks for drafts. Rows that were planned ahead wait for their steps first."""
        wanted = self._drafts_for(rows)
        ready = (wanted > 0) & ~self._running.are_pending(rows)
        self._running.lock_step.hold(rows, wanted > 0, awaiting_drafts=ready)
        tried = self._due(rows, wanted)
        opened, asked, counts, tokens = [], [], [], []
        for row in rows[ready | tried].tolist():
            request = self._running.at(row)
            known = self._followed.get(request.serial)
            if known is None:
                opened.append(Drafted(serial=request.serial, token_ids=request.token_ids()))
                known = request.num_tokens
            new = request.output[known - len(request.prompt) :]
            self._followed[request.serial] = request.num_tokens
            asked.append(request.serial)
            counts.append(len(new))
            tokens.extend(new)
        most = (wanted + tried)[ready | tried]
        if not (asked or self._closed):
            return None
        self._number += 1
        if asked:
            self._asked[self._number] = _Asked(
                asked, most, now, now + self.settings.patience, bool(ready.any())
            )
            self.counters.proposals += 1
        closed, self._closed = self._closed, []
        return Propose(
            number=self._number,
            opened=tuple(opened),
            closed=int64(closed),
            serials=int64(asked),
            counts=int32(counts),
            token_ids=int32(tokens),
            wanted=most,
        )

    def proposed(self, message: Proposed, now: float) -> dict[int, RowDrafts]:
        """Return the drafts that came and can be verified, by serial. Late ones are ignored."""
        asked = self._asked.pop(message.number, None)
        if asked is None:
            self.counters.proposals_late += len(message.counts) > 0
            return {}
        seconds = message.seconds if 0 <= message.seconds < math.inf else 0.0
        if asked.is_awaited:
            self._drafted(seconds, now - asked.began)
        else:
            self.draft_budget.spent(seconds)
        counts = message.counts
        if len(counts) != len(asked.serials) or (counts < 0).any() or counts.sum() != len(message.token_ids):
            self.counters.drafts_ignored += len(message.token_ids)
            return dict.fromkeys(asked.serials, NO_ROW_DRAFTS)
        guesses = split_drafts(counts, message.token_ids, int32())
        return {
            serial: self._checked(guess, most)
            for serial, guess, most in zip(asked.serials, guesses, asked.wanted.tolist(), strict=True)
        }

    def _drafted(self, seconds: float, waited: float) -> None:
        self.counters.drafter_microseconds += round(1e6 * seconds)
        self.draft_budget.drafted(waited)

    def came(self, request: ScheduledRequest, guess: RowDrafts) -> None:
        """Take drafts, or none, of a request. Drafts for a request that does not wait for any are shadow
        drafts.
        """
        if self._running.awaits_drafts(request):
            self._take(request, guess)
        elif len(guess) and request.row is not None:
            self._shadow_drafts.record(request.row, self._followed[request.serial], int(guess.token_ids[0]))

    def _take(self, request: ScheduledRequest, guess: RowDrafts) -> None:
        row = request.held_row
        if request.params.structured_outputs is not None:
            # A grammar follows a single path.
            guess = guess.chain()
        self._running.lock_step.drafted(request.held_row, len(guess))
        if len(guess):
            self._drafts[row] = guess
        else:
            self.draft_budget.missed(row)

    def _checked(self, guess: RowDrafts, most: int) -> RowDrafts:
        """Return the drafts up to the first that is no token id, at most as many as were asked for."""
        drafts = guess.token_ids
        bad = drafts < 0 if self._vocab_size is None else (drafts < 0) | (drafts >= self._vocab_size)
        good = min(most, int(bad.argmax()) if bad.any() else len(drafts))
        self.counters.drafts_ignored += len(drafts) - good
        return guess.first(good)
