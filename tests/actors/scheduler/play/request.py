"""A user's request: its right answer, and the tokens that came."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageant.protocol.serving import Finished, Submit


@dataclass(eq=False)
class Request:
    """A user's request, its right answer, and the tokens and ends that reached its frontend."""

    submit: Submit
    right: list[int]
    """The right output tokens."""
    reason: str
    """Why the right output ends: `stop`, `length` or `error`."""
    tokens: list[int] = field(default_factory=list)
    ends: list[Finished] = field(default_factory=list)
    aborted: bool = False
    orphaned: bool = False
    """Whether nobody waits for its end: its frontend died, or gave it up before a death."""
    resumed: bool = False
    """Whether its frontend has submitted it more than once."""
    may_abort: bool = False
    """Whether it was open when an operator paused with `abort`."""

    @property
    def ended(self) -> bool:
        return bool(self.ends) or self.orphaned

    def end(self, finished: Finished) -> None:
        """Take the terminal message; the tokens so far must be right, and complete unless somebody gave up."""
        self.ends.append(finished)
        if finished.reason in ("stop", "length"):
            assert self.reason == finished.reason, f"ended by {finished.reason}, not {self.reason}"
            assert self.tokens == self.right, f"{self.tokens} came, {self.right} is right"
        else:
            allowed = self.aborted or self.may_abort if finished.reason == "abort" else self.reason == "error"
            assert allowed, f"ended by {finished.reason} without a cause: {finished.message}"
            assert self.tokens == self.right[: len(self.tokens)], "wrong tokens before the end"
        if not (self.resumed and self.aborted):
            assert finished.num_output_tokens == len(self.tokens), "the count of tokens is wrong"
