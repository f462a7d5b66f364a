"""Speculation as the scheduler sees it: who is drafted for, by how much, and what of it was right.

A row that is drafted for goes in lock-step: what follows is planned when its tokens are known and its drafts have
come. How many drafts a row gets is decided anew each step (`Appetite`); with none, it is planned ahead as others are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pageant.actors.scheduler.appetite import Appetite
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.actors.scheduler.running import Chunks, Running
from pageant.protocol.arrays import int32, int64
from pageant.protocol.drafting import Drafted, Propose, Proposed, Speculation
from pageant.protocol.stepping import StepResult

Int32 = npt.NDArray[np.int32]


@dataclass
class SpeculationCounters:
    """Counts since the start, of drafts."""

    drafts_proposed: int = 0  # and verified
    drafts_accepted: int = 0
    drafts_ignored: int = 0  # no token ids, or more than were asked for
    proposals: int = 0
    proposals_late: int = 0
    verifications: int = 0  # of rows that had drafts


@dataclass(frozen=True)
class _Asked:
    """A `Propose` that is not answered."""

    serials: list[int]
    wanted: Int32
    deadline: float


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
        self._drafts: dict[int, Int32] = {}
        self._wanted = np.zeros(num_rows, np.int32)

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

    # Requests, coming and going.

    def admit(self, request: ScheduledRequest) -> None:
        """A request has a row, which the step at hand computes something of."""
        self._drafts.pop(request.held_row, None)
        self.appetite.admit(request.held_row)
        self._running.hold(request, in_lock_step=self._up)

    def forget(self, request: ScheduledRequest) -> None:
        """A request has ended."""
        if self._followed.pop(request.serial, None) is not None:
            self._closed.append(request.serial)

    # One step.

    def plan(self, chunks: Chunks) -> tuple[Int32, Int32]:
        """A step's drafts, all in one; and how many the executor is to propose for each row that draws."""
        some = chunks.drafts > 0
        pairs = zip(chunks.rows[some].tolist(), chunks.drafts[some].tolist(), strict=True)
        found = [self._drafts.pop(row)[:count] for row, count in pairs]
        drafts = np.concatenate(found) if found else int32()
        if not self.settings.on_device:
            return drafts, int32()
        rows = chunks.rows[chunks.draws]
        wanted = self._wanted[rows] = self._appetite_for([self._running.at(row) for row in rows.tolist()])
        for row, count in zip(rows.tolist(), wanted.tolist(), strict=True):
            self._running.hold(self._running.at(row), in_lock_step=count > 0)
        return drafts, wanted

    def make_room(self, refused: Chunks) -> bool:
        """Rows were refused memory. Returns whether giving up their drafts may be enough."""
        some = refused.rows[refused.drafts > 0]
        for row in some.tolist():
            self._drafts.pop(row, None)
        self._running.drop_drafts(some)
        return len(some) > 0

    def verified(self, rows: Int32, counts: Int32, accepted: Int32) -> None:
        """Of so many drafts of these rows, so many were right."""
        some = counts > 0
        rows, counts, accepted = rows[some], counts[some], accepted[some]
        self.counters.verifications += len(rows)
        self.counters.drafts_proposed += int(counts.sum())
        self.counters.drafts_accepted += int(accepted.sum())
        for place in range(int(accepted.max(initial=0))):
            self.accepted_at[place] += int((accepted > place).sum())
        self._running.accepted(rows, accepted)
        self.appetite.verified(rows, counts, accepted)

    def stepped(self, chunks: Chunks, result: StepResult, now: float) -> Propose | None:
        """The tokens of a step are taken. Returns what the drafter is asked now."""
        if (chunks.lengths == 1).all():
            self.appetite.stepped(chunks.num_tokens, result.seconds)
        drawing = chunks[chunks.draws]
        going = self._running.are_running(drawing.rows)
        if self.settings.on_device:
            if len(result.draft_counts) == len(drawing):
                parts = np.split(result.draft_ids, np.cumsum(result.draft_counts)[:-1])
                for index in np.flatnonzero(going).tolist():
                    row = int(drawing.rows[index])
                    self._take(self._running.at(row), self._checked(parts[index], int(self._wanted[row])))
            return None
        return self._ask([self._running.at(row) for row in drawing.rows[going].tolist()], now)

    def _appetite_for(self, requests: Sequence[ScheduledRequest]) -> Int32:
        """How many drafts each is to get: no more than it has room for, the token after them included."""
        if not self._up:
            return np.zeros(len(requests), np.int32)
        rows = int32([request.held_row for request in requests])
        room = int32([request.max_total - request.num_tokens - 1 for request in requests])
        return np.minimum(self.appetite.wanted(rows), np.maximum(room, 0)).astype(np.int32)

    def _ask(self, requests: list[ScheduledRequest], now: float) -> Propose | None:
        """Asks for those that want drafts. Those that were planned ahead are waited for first."""
        wanted = self._appetite_for(requests)
        opened, asked, counts, tokens, most = [], [], [], [], []
        for request, count in zip(requests, wanted.tolist(), strict=True):
            ready = count > 0 and not self._running.num_pending(request)
            self._running.hold(request, in_lock_step=count > 0, awaits_drafts=ready)
            if not ready:
                continue
            known = self._followed.get(request.serial)
            if known is None:
                opened.append(Drafted(serial=request.serial, token_ids=request.token_ids()))
                known = request.num_tokens
            new = request.output[known - len(request.prompt) :]
            self._followed[request.serial] = request.num_tokens
            asked.append(request.serial)
            most.append(count)
            counts.append(len(new))
            tokens.extend(new)
        if not (asked or self._closed):
            return None
        self._number += 1
        if asked:
            self._asked[self._number] = _Asked(asked, int32(most), now + self.settings.patience)
            self.counters.proposals += 1
        closed, self._closed = self._closed, []
        return Propose(
            number=self._number,
            opened=tuple(opened),
            closed=int64(closed),
            serials=int64(asked),
            counts=int32(counts),
            token_ids=int32(tokens),
            wanted=int32(most),
        )

    def proposed(self, message: Proposed) -> dict[int, Int32]:
        """The drafts that came, by serial: those that can be verified. Late ones are none."""
        asked = self._asked.pop(message.number, None)
        if asked is None:
            self.counters.proposals_late += len(message.counts) > 0
            return {}
        counts = message.counts
        if len(counts) != len(asked.serials) or (counts < 0).any() or counts.sum() != len(message.token_ids):
            self.counters.drafts_ignored += len(message.token_ids)
            return {serial: int32() for serial in asked.serials}
        parts = np.split(message.token_ids, np.cumsum(counts)[:-1])
        return {
            serial: self._checked(part, most)
            for serial, part, most in zip(asked.serials, parts, asked.wanted.tolist(), strict=True)
        }

    def came(self, request: ScheduledRequest, drafts: Int32) -> None:
        """Drafts, or none, for a request that may have been waiting for them."""
        if self._running.awaits_drafts(request):
            self._take(request, drafts)

    def _take(self, request: ScheduledRequest, drafts: Int32) -> None:
        row = request.held_row
        self._running.drafted(request, len(drafts))
        if len(drafts):
            self._drafts[row] = drafts
        else:
            self.appetite.missed(row)

    def _checked(self, drafts: Int32, most: int) -> Int32:
        """As far as they are tokens, and were asked for."""
        bad = drafts < 0 if self._vocab_size is None else (drafts < 0) | (drafts >= self._vocab_size)
        good = min(most, int(bad.argmax()) if bad.any() else len(drafts))
        self.counters.drafts_ignored += len(drafts) - good
        return drafts[:good]
