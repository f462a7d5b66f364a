"""How many drafts a row is worth: by how often its drafts are right, and by what verifying them costs.

A draft at place j of a row whose drafts are each right with probability p brings p^j tokens, and costs the time
that one more token adds to a step. It is worth that while it brings more tokens for its time than the step does
on the whole, so a full batch, whose steps are long, wants better drafts than a single row, to which they come nearly
free. Time is taken to be linear in a step's tokens, with what drafting takes on top of it where there are any; all of
that is learned from the steps as they are.

A row whose drafts are not wanted rests, each time twice as long, and is then tried with a single one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.protocol.drafting import Speculation

__all__ = ["Appetite", "StepTime"]

Int32 = npt.NDArray[np.int32]

_RATE = 0.7  # of drafts that are right, before anything is known
_WEIGHT = 0.15  # of one draft in a row's rate
_GLOBAL_WEIGHT = 0.02  # and in that of all, with which a row begins
_DRAFTING_WEIGHT = 0.1
_MISS = 0.8  # what a rate falls to, of itself, when a drafter that was asked has nothing
_REST_MIN, _REST_MAX = 8, 256  # steps
_RIGHT_AGAIN = 0.5  # the rate of a row whose draft was right after a rest
_WORTH_MIN = 1.05  # of a step with drafts against one without: it must gain something

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
        self._overall = _RATE
        self._rates = np.full(num_rows, _RATE)
        self._resting = np.zeros(num_rows, np.int32)
        self._rests = np.full(num_rows, _REST_MIN, np.int32)
        self._on_trial = np.zeros(num_rows, np.bool_)

    def admit(self, row: int) -> None:
        """A row begins, as likely to be guessed as the others so far."""
        self._rates[row] = self._overall
        self._on_trial[row] = False
        self._rests[row] = _REST_MIN
        self._resting[row] = 0

    def stepped(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        self.time.add(tokens, max(seconds, _TICK))

    def drafted(self, seconds: float) -> None:
        """Drafts were made, for which a step waited so long."""
        self.drafting += _DRAFTING_WEIGHT * (seconds - self.drafting) if self.drafting else seconds

    def verified(self, rows: Int32, counts: Int32, accepted: Int32) -> None:
        """Of so many drafts of each row, so many were right, up to the first that was not."""
        if not self.settings.adaptive:
            return
        for right in range(int(counts.max(initial=0))):
            tried = (accepted >= right) & (counts > right)
            some = rows[tried]
            hit = (accepted > right)[tried].astype(float)
            self._rates[some] += _WEIGHT * (hit - self._rates[some])
            for one in hit.tolist():
                self._overall += _GLOBAL_WEIGHT * (one - self._overall)
        lucky = rows[accepted > 0]
        self._rests[lucky] = _REST_MIN
        again = lucky[self._on_trial[lucky]]
        self._rates[again] = np.maximum(self._rates[again], _RIGHT_AGAIN)
        self._on_trial[rows] = False

    def missed(self, row: int) -> None:
        """The drafter had nothing for a row."""
        self._rates[row] *= _MISS
        self._on_trial[row] = False

    def wanted(self, rows: Int32) -> Int32:
        """How many drafts each of these rows is to get in its next step; the others' are not changed."""
        most = self.settings.tokens
        if not self.settings.adaptive or not len(rows):
            return np.full(len(rows), most, np.int32)
        resting = self._resting[rows] > 0
        self._resting[rows] -= resting
        self._on_trial[rows[resting & (self._resting[rows] == 0)]] = True
        on_trial = self._on_trial[rows]
        counts = self._best(self._rates[rows])
        tired = rows[~resting & ~on_trial & (counts == 0)]
        if len(tired):
            self._resting[tired] = self._rests[tired]
            self._rests[tired] = np.minimum(2 * self._rests[tired], _REST_MAX)
        counts[resting] = 0
        counts[on_trial] = 1  # until it has been verified, which may take until the next step
        return counts

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
        seconds += self.drafting
        best = int(np.argmax(tokens / seconds))
        if tokens[best] / seconds[best] < _WORTH_MIN * base_rate:
            return np.zeros(len(rates), np.int32)
        counts: Int32 = (gains >= order[best]).sum(axis=1).astype(np.int32)
        return counts
