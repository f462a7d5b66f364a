"""Speculation as the scheduler sees it: who is drafted for, by how much, and what of it was right.

A row that is drafted for goes in lock-step: what follows is planned when its tokens are known and its drafts have
come. How many drafts a row gets is decided anew each step (`Appetite`); with none, it is planned ahead as others are,
and now and then a guess of its next token is only looked at (`Trials`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pageant.actors.scheduler.appetite import Appetite
from pageant.actors.scheduler.guesses import NOTHING, Guess, apart, together
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.running import Chunks, Running
from pageant.actors.scheduler.trials import Trials
from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Drafted, Propose, Proposed, Speculation
from pageant.protocol.stepping import StepResult
from pageant.protocol.verification import NO_DRAFTS, Drafts

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass
class SpeculationCounters:
    """Counts since the start, of drafts."""

    drafts_proposed: int = 0  # and verified
    drafts_accepted: int = 0
    drafts_ignored: int = 0  # no token ids, or more than were asked for
    proposals: int = 0
    drafter_microseconds: int = 0  # that making drafts took
    proposals_late: int = 0
    verifications: int = 0  # of rows that had drafts


@dataclass(frozen=True)
class _Asked:
    """A `Propose` that is not answered."""

    serials: list[int]
    wanted: Int32
    began: float
    deadline: float
    is_awaited: bool  # or all of them are trials


class Speculator:
    """Drafts by row, where they come from, and how many are wanted.

    Args:
        vocab_size: of the model; None takes any token id that is not negative.
    """

    def __init__(self, settings: Speculation, vocab_size: int | None, running: Running) -> None:
        self.settings = settings
        self.counters = SpeculationCounters()
        self.accepted_at = [0] * settings.tokens  # by place among a row's drafts
        self._vocab_size = vocab_size
        self._running = running
        self._up = settings.on_device  # whether there is somebody to ask
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._followed: dict[int, int] = {}  # by serial: tokens that the drafter knows
        self._closed: list[int] = []
        self.reset(0)

    def count(self) -> dict[str, int]:
        """What happened so far, with how many drafts were right by their place among a row's."""
        return vars(self.counters) | {f"drafts_accepted_at_{i}": n for i, n in enumerate(self.accepted_at)}

    def reset(self, num_rows: int) -> None:
        """A new executor: nobody has a row."""
        self.appetite = Appetite(self.settings, num_rows)
        self._drafts: dict[int, Guess] = {}
        self._is_short = False  # of memory: no room is asked for ahead
        self._wanted = np.zeros(num_rows, np.int32)  # of the executor, where a row is in lock-step
        self._trials = Trials(num_rows)

    # The drafter, coming and going.

    def drafter_up(self) -> None:
        """It knows nothing yet."""
        self._up = True

    def drafter_down(self) -> list[int]:
        """Its memory is lost. Returns the serials that were waiting for it."""
        self._up = self.settings.on_device
        self._followed.clear()
        self._closed.clear()
        waiting = [serial for asked in self._asked.values() for serial in asked.serials]
        self._asked.clear()
        return waiting

    def late(self, now: float) -> list[int]:
        """The serials that have waited for too long; what still comes for them is passed over."""
        numbers = [number for number, asked in self._asked.items() if asked.deadline <= now]
        return [serial for number in numbers for serial in self._asked.pop(number).serials]

    @property
    def next_deadline(self) -> float | None:
        """When `late` has something to do."""
        return min((asked.deadline for asked in self._asked.values()), default=None)

    @property
    def awaits_drafts(self) -> bool:
        """Whether rows wait for what was asked of the drafter."""
        return any(asked.is_awaited for asked in self._asked.values())

    # Requests, coming and going.

    def admit(self, request: ScheduledRequest) -> None:
        """A request has a row, which the step at hand computes something of."""
        self._drafts.pop(request.held_row, None)
        self.appetite.admit(request.held_row)
        self._trials.forget(request.held_row)
        self._running.hold(int32([request.held_row]), np.array([self._up]))

    def forget(self, request: ScheduledRequest) -> None:
        """A request has ended."""
        if self._followed.pop(request.serial, None) is not None:
            self._closed.append(request.serial)

    # One step.

    def plan(self, chunks: Chunks) -> tuple[Drafts, Int32]:
        """A step's drafts; and how many the executor is to propose for each row that draws."""
        some = chunks.drafts > 0
        pairs = zip(chunks.rows[some].tolist(), chunks.drafts[some].tolist(), strict=True)
        found = [self._drafts.pop(row).first(count) for row, count in pairs]
        drafts = together(chunks.drafts, found) if found else NO_DRAFTS
        if not self.settings.on_device:
            return drafts, int32()
        rows = chunks.rows[chunks.draws]
        wanted = self._appetite_for(rows)
        self._running.hold(rows, (wanted > 0) | (chunks.drafts[chunks.draws] > 0))
        self._wanted[rows] = wanted
        return drafts, wanted + self._due(rows, wanted)

    @property
    def holds_all(self) -> bool:
        """Whether nothing is to be planned before all tokens are known and all drafts have come: for rows that have
        drafts, so that others share their steps."""
        held = self._running.num_in_lock_step()
        return held > 0 and self.appetite.waits(len(self._running), held)

    def room_for(self, chunks: Chunks) -> Int32:
        """How many tokens each is to have slots for. A proposer on the device writes to those of its drafts before
        they are planned."""
        if not self.settings.on_device or self._is_short:
            return chunks.ends
        return self._running.ends_with(chunks, self.settings.tokens)

    def make_room(self, refused: Chunks) -> bool:
        """Rows were refused memory. Returns whether giving up their drafts, and room for more, may be enough."""
        was_short, self._is_short = self._is_short, self.settings.on_device
        some = refused.rows[refused.drafts > 0]
        for row in some.tolist():
            self._drafts.pop(row, None)
        self._running.drop_drafts(some)
        return len(some) > 0 or self._is_short != was_short

    def verified(self, rows: Int32, going: Bool, drafts: Drafts, accepted: Int32) -> None:
        """Of these rows' drafts, so many were right. Only those count that are of rows that still run."""
        some = going & (drafts.counts > 0)
        self.counters.verifications += int(some.sum())
        self.counters.drafts_proposed += int(drafts.counts[some].sum())
        rows, counts, accepted = rows[some], drafts.lengths[some], accepted[some]
        self.counters.drafts_accepted += int(accepted.sum())
        for place in range(int(accepted.max(initial=0))):
            self.accepted_at[place] += int((accepted > place).sum())
        self._running.accepted(rows, accepted)
        self.appetite.verified(rows, counts, accepted)

    def stepped(self, chunks: Chunks, result: StepResult, now: float) -> Propose | None:
        """The tokens of a step are taken. Returns what the drafter is asked now."""
        self._is_short = False
        if (chunks.lengths == 1).all():
            self.appetite.stepped(chunks.num_tokens, result.seconds - result.drafting_seconds)
        drawing = chunks[chunks.draws]
        going = self._running.are_running(drawing.rows)
        if self._trials:
            self._settle(drawing.rows[going])
        if not self.settings.on_device:
            return self._ask(drawing.rows[going], now)
        if len(result.draft_counts) == len(drawing):
            self._take_made(drawing.rows, going, result)
        return None

    def _take_made(self, rows: Int32, going: Bool, result: StepResult) -> None:
        """The drafts that the executor made for the rows of a step."""
        made = result.draft_counts > 0
        held = self._running.are_in_lock_step(rows)
        if (made & held).any():
            self._drafted(result.drafting_seconds, result.drafting_seconds)
        elif made.any():
            self.appetite.spent(result.drafting_seconds)
        guesses = apart(result.draft_counts, result.draft_ids, result.draft_parents)
        for index in np.flatnonzero(going & made).tolist():
            request = self._running.at(int(rows[index]))
            if self._running.is_stalled(request.held_row):
                continue  # its last token is still to come
            most = int(self._wanted[request.held_row]) if held[index] else 1
            guess = self._checked(guesses[index], most)
            if held[index]:
                self._take(request, guess.first(self._room(request)))
            elif len(guess):
                self._trials.guess(request.held_row, request.num_tokens, int(guess.token_ids[0]))

    def _settle(self, rows: Int32) -> None:
        """Judges what was guessed of these rows."""
        rows, positions, guessed = self._trials.settle(rows, self._running.num_tokens(rows))
        drawn = [
            self._running.token(row, at) for row, at in zip(rows.tolist(), positions.tolist(), strict=True)
        ]
        self.appetite.tried(rows, guessed == int32(drawn))

    def _appetite_for(self, rows: Int32) -> Int32:
        """How many drafts each is to get: no more than it has room for, the token after them included."""
        if not self._up:
            return np.zeros(len(rows), np.int32)
        return np.minimum(self.appetite.wanted(rows), self._running.room(rows)).astype(np.int32)

    def _due(self, rows: Int32, wanted: Int32) -> Bool:
        """Which of these rows, for which so many drafts are wanted, are tried."""
        found = np.zeros(len(rows), np.bool_)
        if self._up and not wanted.all():
            none = wanted == 0
            found[none] = self.appetite.due(rows[none])
            found &= self._running.room(rows) > 0
        return found

    def _room(self, request: ScheduledRequest) -> int:
        """How many drafts can be right, so that the token after them is a request's last."""
        return max(0, request.max_total - request.num_tokens - 1)

    def _ask(self, rows: Int32, now: float) -> Propose | None:
        """Asks for those that want drafts. Those that were planned ahead are waited for first."""
        wanted = self._appetite_for(rows)
        ready = (wanted > 0) & ~self._running.are_pending(rows)
        self._running.hold(rows, wanted > 0, awaiting_drafts=ready)
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

    def proposed(self, message: Proposed, now: float) -> dict[int, Guess]:
        """The drafts that came, by serial: those that can be verified. Late ones are none."""
        asked = self._asked.pop(message.number, None)
        if asked is None:
            self.counters.proposals_late += len(message.counts) > 0
            return {}
        seconds = message.seconds if 0 <= message.seconds < math.inf else 0.0
        if asked.is_awaited:
            self._drafted(seconds, now - asked.began)
        else:
            self.appetite.spent(seconds)
        counts = message.counts
        if len(counts) != len(asked.serials) or (counts < 0).any() or counts.sum() != len(message.token_ids):
            self.counters.drafts_ignored += len(message.token_ids)
            return dict.fromkeys(asked.serials, NOTHING)
        guesses = apart(counts, message.token_ids, int32())
        return {
            serial: self._checked(guess, most)
            for serial, guess, most in zip(asked.serials, guesses, asked.wanted.tolist(), strict=True)
        }

    def _drafted(self, seconds: float, waited: float) -> None:
        self.counters.drafter_microseconds += round(1e6 * seconds)
        self.appetite.drafted(waited)

    def came(self, request: ScheduledRequest, guess: Guess) -> None:
        """Drafts, or none, for a request that may have been waiting for them; else they are only looked at."""
        if self._running.awaits_drafts(request):
            self._take(request, guess)
        elif len(guess) and request.row is not None:
            self._trials.guess(request.row, self._followed[request.serial], int(guess.token_ids[0]))

    def _take(self, request: ScheduledRequest, guess: Guess) -> None:
        row = request.held_row
        if request.params.structured_outputs is not None:
            guess = guess.chain()  # a grammar follows one path
        self._running.drafted(request, len(guess))
        if len(guess):
            self._drafts[row] = guess
        else:
            self.appetite.missed(row)

    def _checked(self, guess: Guess, most: int) -> Guess:
        """As far as they are tokens, and were asked for."""
        drafts = guess.token_ids
        bad = drafts < 0 if self._vocab_size is None else (drafts < 0) | (drafts >= self._vocab_size)
        good = min(most, int(bad.argmax()) if bad.any() else len(drafts))
        self.counters.drafts_ignored += len(drafts) - good
        return guess.first(good)
