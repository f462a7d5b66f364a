"""An HTTP request on its way: what comes of it, choice by choice, for one reader on the same loop.

What comes faster than it is read is merged, so a slow reader costs no more than its answer's length, and gets
fewer and longer pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pageant.actors.frontend.outputs import Arrived, TokenLogprobs, token_logprobs
from pageant.actors.http.errors import Disconnected, failure
from pageant.actors.http.naming import AS_INSIDE, Names, renamed
from pageant.actors.parsers.base import OutputParser, Said
from pageant.actors.runtime.version import VERSION
from pageant.protocol.errors import PageantError
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished, WeightVersionSpans

ABORTED = Finished(reason="abort", message="the request was aborted")


class Piece(NamedTuple):
    """The next of a choice, or all of it."""

    choice: Choice
    said: Said
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    finished: Finished | None


class Choice:
    """Sequence of an answer. `index` is its number in the answer, `prompt` what it continues."""

    __slots__ = (
        *("_logprobs", "_parser", "_texts", "_token_ids", "asked_logprobs", "cumulative_logprob"),
        *("finished", "index", "num_calls", "num_taken", "num_tokens", "prompt", "weight_versions"),
    )

    def __init__(
        self, index: int, prompt: PromptAnswers, parser: OutputParser | None, logprobs: bool
    ) -> None:
        self.index, self.prompt = index, prompt
        self.asked_logprobs = logprobs
        self.finished: Finished | None = None
        self.num_tokens = self.num_taken = self.num_calls = 0
        self.cumulative_logprob = 0.0
        self.weight_versions: WeightVersionSpans = ()
        """The weights that its tokens were drawn by, so far."""
        self._parser = parser
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of what the model thought, of those that were taken."""
        return self._parser.num_reasoning_tokens if self._parser is not None else 0

    def begin(self, prompt: str | None) -> None:
        """Start the parser: the prompt that the choice continues is known."""
        if self._parser is not None:
            self._parser.begin(prompt)

    def add(self, arrived: Arrived) -> None:
        """The next piece has come."""
        if arrived.text:
            self._texts.append(arrived.text)
        self._token_ids += arrived.token_ids
        self.num_tokens += len(arrived.token_ids)
        if arrived.logprobs is not None:
            self.cumulative_logprob += float(arrived.logprobs.logprobs.sum(dtype="float64"))
            if self.asked_logprobs:
                ranked = self.prompt.hub.params.logprob_token_ids is None
                self._logprobs += token_logprobs(
                    arrived.logprobs, arrived.token_texts, arrived.token_bytes, ranked=ranked
                )
        if arrived.weight_versions:
            self.weight_versions = arrived.weight_versions
            self.prompt.hub.weight_version = arrived.weight_versions[-1].version
        self.finished = arrived.finished
        if arrived.finished is not None:
            self.weight_versions = arrived.finished.weight_versions

    def take(self) -> Piece:
        """Return the output that has come since the last call."""
        text = self._texts[0] if len(self._texts) == 1 else "".join(self._texts)
        token_ids, logprobs = self._token_ids, self._logprobs
        self._texts, self._token_ids = [], []
        self.num_taken += len(token_ids)
        if logprobs:
            self._logprobs = []
        if self._parser is None:
            said = Said(text)
        else:
            ended = self.finished
            cut = ended is not None and ended.reason == "length"
            said = self._parser.feed(text, token_ids, ended is not None, cut)
            self.num_calls = max([self.num_calls, *(call.number + 1 for call in said.calls)])
        return Piece(self, said, token_ids, logprobs, self.finished)


class PromptAnswers:
    """The sink of one prompt's outputs: its choices, and what is known of the prompt itself."""

    def __init__(self, name: str, answers: Answers) -> None:
        self.name, self.hub = name, answers
        self.text: str | None = None
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = [None]
        self.choices: list[Choice] = []

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        """The request is on its way."""
        self.text, self.token_ids = prompt, prompt_token_ids
        for choice in self.choices:
            choice.begin(prompt)
        if self.hub.on_accepted is not None:
            self.hub.on_accepted()

    def output(self, arrived: Arrived) -> None:
        """The next piece of one of its choices."""
        choice = self.choices[arrived.sample]
        choice.add(arrived)
        self.hub.fresh[choice] = None
        if arrived.prompt_logprobs is not None:
            self.logprobs += token_logprobs(arrived.prompt_logprobs, arrived.token_texts, arrived.token_bytes)
        if arrived.finished is not None:
            if arrived.finished.reason == "error":
                self.hub.fail(renamed(failure(arrived.finished), self.hub.names))
            self.hub.num_running -= 1

    def failed(self, error: PageantError) -> None:
        """Fail the response: there will be no (more) output."""
        self.hub.fail(renamed(error, self.hub.names))


class Answers:
    """Choices of one HTTP request.

    Args:
        name: what the request is called outside.
        num_prompts: how many prompts it has, each with as many choices as `params` say.
        parser: makes a parser for each choice.
        abort: ends requests, by their names at the frontend.
        ended: called once, when nothing of it is left.
        names: what the client calls its request's parameters.
    """

    def __init__(
        self,
        name: str,
        num_prompts: int,
        params: SamplingParams,
        parser: Callable[[], OutputParser] | None,
        abort: Callable[[list[str]], None],
        ended: Callable[[Answers], None],
        names: Names = AS_INSIDE,
    ) -> None:
        self.name, self.params, self.names = name, params, names
        self.prompts = [PromptAnswers(f"{name}/{index}", self) for index in range(num_prompts)]
        for number, prompt in enumerate(self.prompts):
            for sample in range(params.num_sequences):
                index = number * params.num_sequences + sample
                made = parser() if parser is not None else None
                prompt.choices.append(Choice(index, prompt, made, params.logprobs is not None))
        self.choices = [choice for prompt in self.prompts for choice in prompt.choices]
        self.num_running = len(self.choices)
        self.fresh: dict[Choice, None] = {}  # those of which something has come that was not taken
        self.error: Exception | None = None  # what ended it, instead of an answer
        self.weight_version = ""
        """The version of the weights that drew its latest token; at first, of those that are there."""
        self.on_accepted: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None
        self.push: Callable[[], bool] | None = (
            None  # takes what is fresh while the reader waits; whether it did
        )
        self._waiter: asyncio.Future[None] | None = None
        self._abort, self._ended = abort, ended
        self._closed = False
        self.is_aborted = False  # perhaps when all of it had come

    def trim(self, counts: Sequence[int]) -> None:
        """Keep the first so many choices of each prompt: there will be no others."""
        for prompt, count in zip(self.prompts, counts, strict=True):
            del prompt.choices[count:]
        self.choices = [choice for prompt in self.prompts for choice in prompt.choices]
        self.num_running = len(self.choices)

    def weight_versions(self) -> tuple[str, ...]:
        """Return the versions of the weights that drew its tokens, each once, in order."""
        spans = (span for choice in self.choices for span in choice.weight_versions)
        return tuple(dict.fromkeys(span.version for span in spans)) or (self.weight_version,)

    @property
    def fingerprint(self) -> str:
        """The value of `system_fingerprint`: this software's version, and that of the weights of its latest token."""
        return f"pageant-{VERSION}-{self.weight_version or 'default'}"

    # From the frontend, on this loop.

    def flush(self) -> None:
        """Hands what has come to the reader, if it waits: at once where it can take it so, else by waking it."""
        if self._waiter is None or self._waiter.done() or (self.push is not None and self.push()):
            return
        self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the response with an error. Output that has come does not count."""
        self.error = self.error or error
        self.flush()

    # From whoever has had enough.

    def leave(self) -> None:
        """The client has gone."""
        self.fail(Disconnected())

    def abort(self) -> None:
        """Ends what still runs, with what it has by now."""
        self.is_aborted = True
        running = [choice for choice in self.choices if choice.finished is None]
        self._abort([prompt.name for prompt in self.prompts])
        for choice in running:
            choice.finished = ABORTED
            self.fresh[choice] = None
        self.num_running = 0
        self.flush()

    # The reader.

    @property
    def done(self) -> bool:
        """Tell whether everything has ended and was taken."""
        return not self.num_running and not self.fresh

    async def wait(self) -> None:
        """Returns when something has come; or when it was woken without.

        Raises:
            Exception: what ended the request, instead of an answer.
        """
        if not self.fresh and self.error is None and self.num_running:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.error is not None:
            raise self.error

    def take(self) -> Iterator[Piece]:
        """Yield what has come since the last call, one piece for each choice of which anything has.

        A piece counts as taken when it is yielded, so that usage told with one counts none of the next.
        """
        fresh, self.fresh = self.fresh, {}
        for choice in fresh:
            yield choice.take()

    async def whole(self) -> list[Piece]:
        """Return all choices, when they have ended; with `best_of` the best of each prompt. Then close this.

        Raises:
            Exception: see `wait`.
        """
        try:
            while self.num_running or self.error is not None:
                self.fresh.clear()  # it is taken at the end, all at once
                await self.wait()
        finally:
            self.close()
        pieces = [choice.take() for prompt in self.prompts for choice in self._best(prompt)]
        for choice in self.choices:
            choice.num_taken = choice.num_tokens
        return pieces

    def _best(self, prompt: PromptAnswers) -> list[Choice]:
        """The choices that are shown, numbered as they are."""
        number, chosen = self.prompts.index(prompt), prompt.choices
        if self.params.num_sequences > self.params.n:
            chosen = sorted(chosen, key=lambda choice: -choice.cumulative_logprob)[: self.params.n]
        for place, choice in enumerate(chosen):
            choice.index = number * self.params.n + place
        return chosen

    def close(self) -> None:
        """Aborts what has not ended. Called once everything was taken, or nobody wants it; twice does no harm."""
        if self._closed:
            return
        self._closed = True
        if self.num_running:
            self._abort([prompt.name for prompt in self.prompts])
        self._ended(self)
        if self.on_close is not None:
            self.on_close()

    # Counts.

    @property
    def num_prompt_tokens(self) -> int:
        """Count the tokens of the prompts, each prompt once."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def num_taken_tokens(self) -> int:
        """Output tokens that the reader took, and those of choices that `best_of` does not show."""
        return sum(choice.num_taken for choice in self.choices)

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of what the model thought, of those that the reader took."""
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix cache."""
        firsts = [prompt.choices[0].finished for prompt in self.prompts]
        return sum(finished.num_cached_tokens for finished in firsts if finished is not None)
