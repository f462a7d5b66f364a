"""Users who know the right answer, and hold what comes against it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pageant.actors.frontend.outputs import Arrived
from pageant.actors.frontend.requests import Opening
from pageant.actors.runtime.simulation import Violation
from pageant.protocol.errors import DeadlineExceeded, PageantError
from pageant.protocol.serving import Finished
from pageant.protocol.tokenizing import Tokenize
from pageant.scripts.simulate.answers import Answer, answer, text_of
from pageant.scripts.simulate.requests import Wanted
from pageant.scripts.simulate.topology import StandIn


class User:
    """One request's user: holds every piece of output against the right one as it comes.

    Args:
        leave: called when the user leaves.
        say: told of what must not be.
        excuses: whether it may end with this error.
    """

    def __init__(
        self,
        wanted: Wanted,
        model: StandIn,
        leave: Callable[[User], None],
        say: Callable[[Violation], None],
        excuses: Callable[[User, Finished], bool],
    ) -> None:
        self.wanted, self._model = wanted, model
        self._leave, self._say, self._excuses = leave, say, excuses
        self.incarnation = 0  # the frontend's that the request was given to, once it was
        self.executor_deaths = 0  # before that
        self.leaving = self.left = False
        self.error: PageantError | None = None
        self.hub = self
        self._prompt_ids: list[int] = []
        count = wanted.params.n
        self._answers: list[Answer] = []
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._logprobs: list[list[float]] = [[] for _ in range(count)]
        self._texts = [""] * count
        self.ends: list[Finished | None] = [None] * count

    def opening(self) -> Opening:
        """Return what is handed to the frontend."""
        prompt = self.wanted.prompt
        asked = Tokenize(text=prompt) if isinstance(prompt, str) else np.array(prompt, np.int32)
        return Opening(self.wanted.name, asked, self.wanted.params, self, self.wanted.settings)  # type: ignore[arg-type]

    @property
    def done(self) -> bool:
        """Tell whether nothing more will come: the other samples end with one that fails."""
        failed = any(end is not None and end.reason == "error" for end in self.ends)
        return self.left or self.error is not None or failed or all(end is not None for end in self.ends)

    @property
    def was_late(self) -> bool:
        """Tell whether its deadline passed before the request was submitted."""
        return isinstance(self.error, DeadlineExceeded) and "deadline" in self.wanted.settings

    # What comes.

    def flush(self) -> None:
        """Do nothing: it is its own hub."""

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self._prompt_ids = prompt_token_ids
        self._answers = [
            answer(prompt_token_ids, self.wanted.params, sample, self._model)
            for sample in range(self.wanted.params.n)
        ]

    def failed(self, error: PageantError) -> None:
        self._hold(not self.done, f"failed with {error!r} after its end")
        self.error = error

    def output(self, arrived: Arrived) -> None:
        sample = arrived.sample
        self._hold(not self.left, "has output after its user left")
        self._hold(self.ends[sample] is None, f"has output after the end of sample {sample}")
        right, tokens = self._answers[sample], self._tokens[sample]
        tokens += arrived.token_ids
        self._texts[sample] += arrived.text
        self._hold(
            tokens == right.token_ids[: len(tokens)],
            f"sample {sample}: has tokens {tokens}, the right ones are {right.token_ids}",
        )
        text = right.text
        if arrived.finished is not None and arrived.finished.reason in ("abort", "error"):
            # Cut short, it shows what was held back, since it might have become a stop string.
            text = text_of(self._prompt_ids, tokens)
        self._hold(
            text.startswith(self._texts[sample]),
            f"sample {sample}: has text {self._texts[sample]!r}, the right one is {text!r}",
        )
        if self.wanted.params.logprobs is not None:
            piece = arrived.logprobs
            self._hold(
                (len(piece) if piece is not None else 0) == len(arrived.token_ids),
                f"sample {sample}: {len(arrived.token_ids)} tokens came with other log-probabilities",
            )
            self._logprobs[sample] += piece.logprobs.tolist() if piece is not None else []
            self._hold(
                self._logprobs[sample] == right.logprobs[: len(self._logprobs[sample])],
                f"sample {sample}: wrong log-probabilities",
            )
        if arrived.finished is not None:
            self._end(sample, arrived.finished)
        after = self.wanted.abort_after
        if after is not None and not self.done and not self.leaving and sum(map(len, self._tokens)) > after:
            self.leaving = True
            self._leave(self)

    def _end(self, sample: int, end: Finished) -> None:
        self.ends[sample] = end
        right = self._answers[sample]
        if end.reason == "abort" and "deadline" in self.wanted.settings and end.cause == "deadline":
            return
        if end.reason == "error" and self._excuses(self, end):
            return
        found = (end.reason, end.stop_reason, len(self._tokens[sample]), self._texts[sample])
        expected = (right.reason, right.stop_reason, len(right.token_ids), right.text)
        self._hold(found == expected, f"sample {sample}: ended with {found}, expected {expected} ({end})")

    def _hold(self, condition: bool, text: str) -> None:
        if not condition:
            self._say(Violation(f"{self.wanted.name}: {text}"))
