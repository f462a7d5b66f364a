"""What a user gets back, with the names that users of such engines know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pageant.protocol.errors import PageantError
from pageant.protocol.serving import Finished, FinishReason


class RequestFailed(PageantError):
    """An accepted request ended with an error, such as the death of an actor that had it in its hands."""


@dataclass(frozen=True)
class CompletionOutput:
    """One completion of a request, so far.

    Attributes:
        text, token_ids: everything so far.
        new_text, new_token_ids: what has come since the previous output of this request.
        finish_reason: `stop`, `length`, `abort` or `error` when it has ended; None before.
        stop_reason: the stop string or token id that ended it; None for the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    new_text: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A request and its completions, so far.

    Attributes:
        prompt: the text as the model sees it; None when token ids were given.
        num_cached_tokens: prompt tokens whose KV was found in the prefix cache.
        num_preemptions: how often it had to give way for lack of memory.
        error: what went wrong, if it ended with `error`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None


@dataclass(slots=True)
class Completion:
    """Collects a request's output as it comes."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    finished: Finished | None = None
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)
    _shown_texts: int = 0
    _shown_tokens: int = 0

    def add(self, text: str, token_ids: Sequence[int], finished: Finished | None) -> None:
        """Takes in the next piece."""
        if text:
            self._texts.append(text)
        self._token_ids += token_ids
        self.finished = finished

    @property
    def num_tokens(self) -> int:
        """Output tokens so far."""
        return len(self._token_ids)

    def output(self) -> RequestOutput:
        """The output as of now; `new_text` and `new_token_ids` are since the last call."""
        new_text = "".join(self._texts[self._shown_texts :])
        new_token_ids = self._token_ids[self._shown_tokens :]
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        self._shown_texts, self._shown_tokens = len(self._texts), len(self._token_ids)
        ended = self.finished
        completion = CompletionOutput(
            index=0,
            text="".join(self._texts),
            token_ids=self._token_ids.copy(),
            new_text=new_text,
            new_token_ids=new_token_ids,
            finish_reason=ended.reason if ended is not None else None,
            stop_reason=ended.stop_reason if ended is not None else None,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion],
            finished=ended is not None,
            num_cached_tokens=ended.num_cached_tokens if ended is not None else 0,
            num_preemptions=ended.num_preemptions if ended is not None else 0,
            error=ended.message if ended is not None else None,
        )
