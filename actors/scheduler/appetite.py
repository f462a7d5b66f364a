"""How many drafts a row is worth: by how often its drafts are right, and by what verifying them costs.

A draft at place j of a row whose drafts are each right with probability p brings p^j tokens, and costs the time
that one more token adds to a step. It is worth that while it brings more tokens for its time than the step does
on the whole, so a full batch, whose steps are long, wants better drafts than a single row, to which they come nearly
free. Time is taken to be linear in a step's tokens, with what drafting takes on top of it where there are any; all of
that is learned from the steps as they are.

A row's rate is what was seen of it, and of all others as far as little was. One whose drafts are not wanted rests,
each time twice as long, and is then tried: its next token is guessed, and the guess is only looked at, so that the row
is planned ahead as others are. Trials may take a hundredth of the time that steps do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.protocol.drafting import Speculation

__all__ = ["Appetite", "StepTime"]

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

_RATE = 0.7  # of drafts that are right, before anything is known
_RATE_WEIGHT = 4.0  # drafts that this belief is worth
_KEPT = 0.93  # of what was seen of a row, when one more draft is
_KEPT_OF_ALL = 0.98
_SHARED = 1.0  # drafts that the rate of all is worth to a row
_RIGHT_AGAIN = 0.5  # the rate of a row whose guess was right in a trial, at least
_REST_MIN, _REST_MAX = 8, 256  # steps
_TRIALS = 0.01  # of the time of steps, for guesses that are only looked at
_DRAFTING_WEIGHT = 0.1
_WORTH_MIN = 1.05  # of a step with drafts against one without: it must gain something
_TURN = 5e-4  # seconds on the host between a step's tokens and the next step, where none is planned ahead

_TICK = 1e-6  # seconds: a coarse clock may see none pass


class StepTime:
    """Seconds of a step as `fixed + each * tokens`: least squares, older steps counting less and less."""

    _KEEP = 0.98

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # weight, tokens, seconds, tokens^2, tokens * seconds

    def add(self, tokens: int, seconds: float) -> None:
        """A step took so long."""
        self._sums = self._KEEP * self._sums + (1, tokens, seconds, tokens * tokens, tokens * seconds)

    def line(self) -> tuple[float, float]:
        """(fixed, each). Of steps of one size alone, a token's share is taken to be small."""
        weight, tokens, seconds, squares, products = self._sums.tolist()
        if not weight or seconds <= 0:
            return 1.0, 0.01
        mean_tokens, mean = tokens / weight, seconds / weight
        spread = squares / weight - mean_tokens**2
        guess = 0.2 * mean / (mean_tokens + 16)
        if spread < 0.25:
            return mean - guess * mean_tokens, guess
        each = (products / weight - mean_tokens * mean) / spread
        each = min(max(each, 0.0), mean / max(mean_tokens, 1.0))
        return mean - each * mean_tokens, each


class Appetite:
    """By row: how often drafts are right, and for how many steps none are asked for."""

    def __init__(self, settings: Speculation, num_rows: int) -> None:
        self.settings = settings
        self.time = StepTime()
        self.drafting = 0.0  # seconds that the drafts of a step take to be made
        self._credit = 0.0  # seconds that trials may take
        self._right_of_all, self._seen_of_all = _RATE * _RATE_WEIGHT, _RATE_WEIGHT
        self._right = np.zeros(num_rows)  # drafts, older ones counting less
        self._seen = np.zeros(num_rows)
        self._resting = np.zeros(num_rows, np.int32)
        self._rests = np.full(num_rows, _REST_MIN, np.int32)

    def admit(self, row: int) -> None:
        """A row begins, as likely to be guessed as the others so far."""
        self._right[row] = self._seen[row] = 0.0
        self._rests[row] = _REST_MIN
        self._resting[row] = 0

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        self.time.add(tokens, max(seconds, _TICK))
        self._credit = min(self._credit + _TRIALS * seconds, seconds)

    def drafted(self, seconds: float) -> None:
        """Drafts were made, for which a step waited so long."""
        self.drafting += _DRAFTING_WEIGHT * (seconds - self.drafting) if self.drafting else seconds

    def verified(self, rows: Int32, counts: Int32, accepted: Int32) -> None:
        """Of so many drafts of each row, so many were right, up to the first that was not."""
        if not self.settings.adaptive:
            return
        for right in range(int(counts.max(initial=0))):
            tried = (accepted >= right) & (counts > right)
            self._saw(rows[tried], (accepted > right)[tried])
        self._rests[rows[accepted > 0]] = _REST_MIN

    def missed(self, row: int) -> None:
        """The drafter had nothing for a row, which waited for it."""
        self._saw(np.array([row], np.int32), np.zeros(1, np.bool_))

    def tried(self, rows: Int32, right: Bool) -> None:
        """The guesses of trials, and what was drawn."""
        self._saw(rows, right)
        lucky = rows[right]
        self._resting[lucky], self._rests[lucky] = 0, _REST_MIN
        self._right[lucky] = np.maximum(
            self._right[lucky], _RIGHT_AGAIN * (self._seen[lucky] + _SHARED) - _SHARED * self._rate_of_all
        )

    def spent(self, seconds: float) -> None:
        """Trials took so long."""
        self._credit -= seconds

    def wanted(self, rows: Int32) -> Int32:
        """How many drafts each of these rows is to get in its next step; the others' are not changed."""
        most = self.settings.tokens
        if not self.settings.adaptive or not len(rows):
            return np.full(len(rows), most, np.int32)
        resting = self._resting[rows] > 0
        counts = self._best(np.where(resting, 0.0, self._rates(rows)))
        tired = rows[~resting & (counts == 0)]
        if len(tired):
            self._rest(tired)
        return counts

    def due(self, rows: Int32) -> Bool:
        """Which of these are to be tried now, after a step in which nothing was wanted for them."""
        if not self.settings.adaptive:
            return np.zeros(len(rows), np.bool_)
        resting = self._resting[rows]
        self._resting[rows] = np.maximum(
            resting - 1, 1
        )  # the last of it lasts until there is time for a trial
        due: Bool = (resting == 1) & (self._credit >= 0)
        if due.any():
            self._rest(rows[due])
        return due

    def waits(self, num_rows: int, num_drafted_for: int) -> bool:
        """Whether rows that might be planned ahead should rather wait for those with drafts, to share their steps.

        Apart, those with drafts have every other step; together, each step begins late, by the time that drafts and
        the host take.
        """
        fixed, each = self.time.line()
        late = self.drafting + _TURN
        return num_drafted_for * (fixed + each * num_rows + late) > late * (num_rows + num_drafted_for)

    def _saw(self, rows: Int32, right: Bool) -> None:
        """Drafts were right, or not, one of each row."""
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
        """The number of drafts for each row by which the step yields most tokens a second."""
        fixed, each = self.time.line()
        gains = rates[:, None] ** np.arange(1, self.settings.tokens + 1)  # of each draft, in tokens
        base_tokens = float(len(rates))
        base_rate = base_tokens / (fixed + each * base_tokens)
        # The best go in first, as long as each brings more for its time than all before it.
        order = np.sort(gains, axis=None)[::-1]
        tokens = base_tokens + np.cumsum(order)
        seconds = fixed + each * (base_tokens + np.arange(1, len(order) + 1))
        seconds += self.drafting + _TURN
        best = int(np.argmax(tokens / seconds))
        if tokens[best] / seconds[best] < _WORTH_MIN * base_rate:
            return np.zeros(len(rates), np.int32)
        counts: Int32 = (gains >= order[best]).sum(axis=1).astype(np.int32)
        return counts
