"""Users who know the right answer, and hold what comes against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pageant.actors.executor.simulated import continuation
from pageant.actors.frontend.outputs import Arrived
from pageant.actors.frontend.requests import Opening
from pageant.actors.runtime.simulation import Violation
from pageant.protocol.errors import PageantError
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished
from pageant.protocol.tokenizing import Tokenize
from pageant.scripts.simulate.requests import Wanted, tokenization


@dataclass(frozen=True)
class Expected:
    """One sample's right end."""

    token_ids: list[int]
    logprobs: list[float]
    reason: str
    stop_reason: str | int | None
    text: str


def expect(prompt_ids: list[int], params: SamplingParams, sample: int, alphabet: int) -> Expected:
    """What a sample of a request must come to, whatever happens."""
    tokens, logprobs = continuation(
        prompt_ids,
        params.max_tokens or 0,
        temperature=params.temperature,
        seed=params.seed or 0,
        sample=sample,
        alphabet=alphabet,
    )
    text, before = "", len(tokenization().decode(prompt_ids, skip_special_tokens=True))
    for end in range(1, len(tokens) + 1):
        shown = text
        if params.detokenize:
            text = tokenization().decode(prompt_ids + tokens[:end], skip_special_tokens=True)[before:]
        if tokens[end - 1] in (params.stop_token_ids or ()):
            return Expected(tokens[:end], logprobs[:end], "stop", tokens[end - 1], shown)
        for stop, place in _stops_in(text, params):
            kept = text[: place + len(stop)] if params.include_stop_str_in_output else text[:place]
            return Expected(tokens[:end], logprobs[:end], "stop", stop, kept)
    return Expected(tokens, logprobs, "length", None, text)


def _stops_in(text: str, params: SamplingParams) -> Iterator[tuple[str, int]]:
    """The stop string that is complete first; of those, the longest."""
    places = [(text.find(stop) + len(stop), -len(stop), stop) for stop in params.stop or () if stop in text]
    if places:
        end, _, stop = min(places)
        yield stop, end - len(stop)


class User:
    """One request's user: holds every piece of output against the right one as it comes.

    Args:
        leave: called when the user leaves.
        say: told of what must not be.
    """

    def __init__(
        self,
        wanted: Wanted,
        alphabet: int,
        leave: Callable[[User], None],
        say: Callable[[Violation], None],
    ) -> None:
        self.wanted, self._alphabet, self._leave, self._say = wanted, alphabet, leave, say
        self.incarnation = 0  # the frontend's that the request was given to, once it was
        self.leaving = self.left = False
        self.error: PageantError | None = None
        self.hub = self
        self._prompt_ids: list[int] = []
        count = wanted.params.n
        self._expected: list[Expected] = []
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._logprobs: list[list[float]] = [[] for _ in range(count)]
        self._texts = [""] * count
        self.ends: list[Finished | None] = [None] * count

    def opening(self) -> Opening:
        """What is handed to the frontend."""
        prompt = self.wanted.prompt
        asked = Tokenize(text=prompt) if isinstance(prompt, str) else np.array(prompt, np.int32)
        return Opening(self.wanted.name, asked, self.wanted.params, self, self.wanted.settings)  # type: ignore[arg-type]

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.left or self.error is not None or all(end is not None for end in self.ends)

    # What comes.

    def flush(self) -> None:
        """It is its own hub."""

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self._prompt_ids = prompt_token_ids
        self._expected = [
            expect(prompt_token_ids, self.wanted.params, sample, self._alphabet)
            for sample in range(self.wanted.params.n)
        ]

    def failed(self, error: PageantError) -> None:
        self._hold(not self.done, f"failed with {error!r} after its end")
        self.error = error

    def output(self, arrived: Arrived) -> None:
        sample = arrived.sample
        self._hold(not self.left, "has output after its user left")
        self._hold(self.ends[sample] is None, f"has output after the end of sample {sample}")
        right, tokens = self._expected[sample], self._tokens[sample]
        tokens += arrived.token_ids
        self._texts[sample] += arrived.text
        self._hold(
            tokens == right.token_ids[: len(tokens)],
            f"sample {sample}: has tokens {tokens}, the right ones are {right.token_ids}",
        )
        self._hold(
            right.text.startswith(self._texts[sample]),
            f"sample {sample}: has text {self._texts[sample]!r}, the right one is {right.text!r}",
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
        right = self._expected[sample]
        if end.reason == "abort" and "deadline" in self.wanted.settings and end.cause == "deadline":
            return
        found = (end.reason, end.stop_reason, len(self._tokens[sample]), self._texts[sample])
        expected = (right.reason, right.stop_reason, len(right.token_ids), right.text)
        self._hold(found == expected, f"sample {sample}: ended with {found}, expected {expected} ({end})")

    def _hold(self, condition: bool, text: str) -> None:
        if not condition:
            self._say(Violation(f"{self.wanted.name}: {text}"))
