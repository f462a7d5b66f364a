"""The draft budget: how many drafts each row gets, by its acceptance rate and the cost of verification.

A draft at place j of a row with acceptance rate p yields p^j tokens, and costs the time that one more token
adds to a step. It pays while it yields more tokens for its time than the step as a whole. A full batch, whose
steps are long, therefore needs better drafts than a single row, for which they are nearly free. Step time is
modelled as linear in the step's tokens, plus the time of drafting; both are learned from the steps.

A row's acceptance rate is estimated from its own drafts, and from all rows' while it has few. A row whose
drafts do not pay gets none for some steps, each time for twice as many. Then one shadow draft is made: a draft
of its next token that is compared but not computed, so that the row is planned ahead as others are. Shadow
drafts may take a hundredth of the time of steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.actors.runtime.step_time import StepTime
from pageant.protocol.drafting import Speculation

__all__ = ["DraftBudget", "step_line"]

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

# The acceptance rate that is assumed at first, and the number of drafts that this prior counts for.
_RATE = 0.7
_RATE_WEIGHT = 4.0
# Decay of a row's and of all rows' counts with every draft.
_KEPT = 0.93
_KEPT_OF_ALL = 0.98
# Decay of a step's weight in the times of steps, with each that follows.
_STEP_KEPT = 0.98
# The number of drafts that the rate of all rows counts for in a row's estimate.
_SHARED = 1.0
# The least rate of a row whose shadow draft was right.
_RIGHT_AGAIN = 0.5
# Bounds of the number of steps for which a row gets no drafts.
_REST_MIN, _REST_MAX = 8, 256
# The share of the time of steps that shadow drafts may take.
_TRIALS = 0.01
# Weight of the latest drafting time in its moving average.
_DRAFTING_WEIGHT = 0.1
# The least gain in tokens per second of a step with drafts over one without.
_WORTH_MIN = 1.05
# Seconds on the host between a step's tokens and the next step, if that is not planned ahead.
_TURN = 5e-4
# The least seconds of a step: a coarse clock may measure none.
_TICK = 1e-6


def step_line(time: StepTime) -> tuple[float, float]:
    """Return (fixed, each) of a step in seconds. If all steps have one size, a token's share is assumed to be small."""
    if not time.is_known or time.mean_seconds <= 0:
        return 1.0, 0.01
    mean_tokens, mean = time.mean_tokens, time.mean_seconds
    found = time.each(0.25)
    guess = 0.2 * mean / (mean_tokens + 16)
    each = guess if found is None else min(max(found, 0.0), mean / max(mean_tokens, 1.0))
    return mean - each * mean_tokens, each


class DraftBudget:
    """Decides how many draft tokens each row gets in its next step.

    It follows each row's acceptance rate and the cost of a step, and gives no drafts where verification would
    cost more than it saves. The scheduler's core calls it once per step. Arrays by row have the length
    num_rows.
    """

    def __init__(self, settings: Speculation, num_rows: int) -> None:
        self.settings = settings
        self.time = StepTime(_STEP_KEPT)
        # Moving average of the seconds that the drafts of a step take.
        self.drafting = 0.0
        # Seconds that shadow drafts may take now; negative while they have taken too much.
        self._credit = 0.0
        self._right_of_all, self._seen_of_all = _RATE * _RATE_WEIGHT, _RATE_WEIGHT
        # float64 [num_rows]: accepted drafts, with decay.
        self._right = np.zeros(num_rows)
        # float64 [num_rows]: verified drafts, with decay. Never below `_right`.
        self._seen = np.zeros(num_rows)
        # int32 [num_rows]: steps for which the row still gets no drafts; 0 if it gets drafts.
        self._resting = np.zeros(num_rows, np.int32)
        # int32 [num_rows]: the length of the row's next rest, in steps.
        self._rests = np.full(num_rows, _REST_MIN, np.int32)

    def admit(self, row: int) -> None:
        """Start a new request in a row, with the rate of all rows."""
        self._right[row] = self._seen[row] = 0.0
        self._rests[row] = _REST_MIN
        self._resting[row] = 0

    def stepped(self, tokens: int, seconds: float) -> None:
        """Record a step of `tokens` tokens that took `seconds`."""
        self.time.add(tokens, max(seconds, _TICK))
        self._credit = min(self._credit + _TRIALS * seconds, seconds)

    def drafted(self, seconds: float) -> None:
        """Record `seconds` for which a step waited for drafts."""
        self.drafting += _DRAFTING_WEIGHT * (seconds - self.drafting) if self.drafting else seconds

    def verified(self, rows: Int32, counts: Int32, accepted: Int32) -> None:
        """Record verified drafts.

        rows: int32 [N]. counts: int32 [N], the drafts of each. accepted: int32 [N], how many were right before
        the first wrong one.
        """
        if not self.settings.adaptive:
            return
        for right in range(int(counts.max(initial=0))):
            tried = (accepted >= right) & (counts > right)
            self._saw(rows[tried], (accepted > right)[tried])
        self._rests[rows[accepted > 0]] = _REST_MIN

    def missed(self, row: int) -> None:
        """Record that the drafter had no draft for a row that waited for one."""
        self._saw(np.array([row], np.int32), np.zeros(1, np.bool_))

    def tried(self, rows: Int32, right: Bool) -> None:
        """Record shadow drafts: rows, int32 [N], and whether each was right, bool [N]."""
        self._saw(rows, right)
        right_again = rows[right]
        self._resting[right_again], self._rests[right_again] = 0, _REST_MIN
        self._right[right_again] = np.maximum(
            self._right[right_again],
            _RIGHT_AGAIN * (self._seen[right_again] + _SHARED) - _SHARED * self._rate_of_all,
        )

    def spent(self, seconds: float) -> None:
        """Record `seconds` that shadow drafts took."""
        self._credit -= seconds

    def wanted(self, rows: Int32) -> Int32:
        """Return the number of drafts that each of `rows` gets in its next step: int32 [N] in and out.

        Rows whose drafts have stopped paying begin to rest.
        """
        most = self.settings.tokens
        if not self.settings.adaptive or not len(rows):
            return np.full(len(rows), most, np.int32)
        resting = self._resting[rows] > 0
        counts = self._best(np.where(resting, 0.0, self._rates(rows)))
        unprofitable = rows[~resting & (counts == 0)]
        if len(unprofitable):
            self._rest(unprofitable)
        return counts

    def due(self, rows: Int32) -> Bool:
        """Return which of `rows`, int32 [N], get a shadow draft now: bool [N]. Call after a step without drafts
        for them.
        """
        if not self.settings.adaptive:
            return np.zeros(len(rows), np.bool_)
        resting = self._resting[rows]
        # A rest ends only when there is time for a shadow draft.
        self._resting[rows] = np.maximum(resting - 1, 1)
        due: Bool = (resting == 1) & (self._credit >= 0)
        if due.any():
            self._rest(rows[due])
        return due

    def waits(self, num_rows: int, num_drafted_for: int) -> bool:
        """Tell whether rows without drafts should share the steps of rows with drafts, instead of being planned
        ahead.

        Planned apart, rows with drafts get every other step. Planned together, each step begins late, by the
        time that drafting and the host take.
        """
        fixed, each = step_line(self.time)
        late = self.drafting + _TURN
        return num_drafted_for * (fixed + each * num_rows + late) > late * (num_rows + num_drafted_for)

    def _saw(self, rows: Int32, right: Bool) -> None:
        """Update the rates with one draft of each row, bool [N]: right or not."""
        self._seen[rows] = _KEPT * self._seen[rows] + 1
        self._right[rows] = _KEPT * self._right[rows] + right
        kept = _KEPT_OF_ALL ** len(rows)
        self._seen_of_all = kept * self._seen_of_all + len(rows)
        self._right_of_all = kept * self._right_of_all + float(np.count_nonzero(right))

    def _rates(self, rows: Int32) -> npt.NDArray[np.float64]:
        shared = _SHARED * self._rate_of_all
        rates: npt.NDArray[np.float64] = (self._right[rows] + shared) / (self._seen[rows] + _SHARED)
        return rates

    @property
    def _rate_of_all(self) -> float:
        return self._right_of_all / self._seen_of_all

    def _rest(self, rows: Int32) -> None:
        self._resting[rows] = self._rests[rows]
        self._rests[rows] = np.minimum(2 * self._rests[rows], _REST_MAX)

    def _best(self, rates: npt.NDArray[np.float64]) -> Int32:
        """Return the number of drafts of each row that yields the most tokens per second: float64 [N] in, int32
        [N] out.
        """
        fixed, each = step_line(self.time)
        # The expected tokens that each draft yields: [N, drafts].
        gains = rates[:, None] ** np.arange(1, self.settings.tokens + 1)
        base_tokens = float(len(rates))
        base_rate = base_tokens / (fixed + each * base_tokens)
        # Add the best drafts first, and stop where tokens per second are highest.
        order = np.sort(gains, axis=None)[::-1]
        tokens = base_tokens + np.cumsum(order)
        seconds = fixed + each * (base_tokens + np.arange(1, len(order) + 1))
        seconds += self.drafting + _TURN
        best = int(np.argmax(tokens / seconds))
        if tokens[best] / seconds[best] < _WORTH_MIN * base_rate:
            return np.zeros(len(rates), np.int32)
        counts: Int32 = (gains >= order[best]).sum(axis=1).astype(np.int32)
        return counts
