"""scheduler ──Propose──▶ drafter ──Proposed──▶ scheduler: drafts of the next tokens.

After each step the scheduler tells the drafter the sampled tokens and the sequences that it wants drafts for.
The next step verifies the drafts. It samples each position's token as it would without speculation, and
accepts a draft that equals that token. A drafter can therefore make an answer faster but never change it.
Drafts that come too late, are too long or are no valid tokens are ignored and counted.

A drafter on a device (`speculation.method` draft, eagle, medusa or mtp) exchanges no messages. The executor loads
it, and its drafts come with the step's result.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector
from pageant.protocol.message import Message

DRAFTS_MAX = 62  # with the token before them, they fit a mask of ancestors


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of speculative decoding.

    Attributes:
        method: `ngram` (what followed the same tokens before), `draft` (a smaller model), `eagle`, `medusa`, `mtp` (the
            layer that the model's own checkpoint has for it), `auto` (what `model` holds, or ngram), or `module:Class`
            of your own (see docs/writing-a-drafter.md).
        model: the checkpoint of the draft model, or of the heads. Method mtp takes the served model's own without one.
        tokens: the most drafts for each sequence in a step.
        adaptive: propose fewer drafts, down to none, where few are accepted or verification takes long.
        patience: seconds that a step waits for a drafter in another actor.
        options: options of a drafter of your own.
    """

    method: str
    model: str | None = None
    tokens: int = 4
    adaptive: bool = True
    patience: float = 0.25
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS and ":" not in self.method:
            raise ValueError(f"method is {self.method!r}; expected {', '.join(METHODS)} or module:Class")
        if not 1 <= self.tokens <= DRAFTS_MAX:
            raise ValueError(f"tokens is {self.tokens}; expected 1 to {DRAFTS_MAX}")
        if self.method in MODEL_METHODS and self.model is None:
            raise ValueError(f"method {self.method} needs a model; expected a checkpoint's folder")
        if self.patience <= 0:
            raise ValueError(f"patience is {self.patience}; expected more than 0 seconds")

    @property
    def on_device(self) -> bool:
        """Tell whether the executor makes the drafts, rather than a drafter actor."""
        return self.method in DEVICE_METHODS


MODEL_METHODS = ("draft", "eagle", "medusa")
"""Methods whose weights are in a checkpoint of their own."""
DEVICE_METHODS = (*MODEL_METHODS, "mtp")
METHODS = ("ngram", *DEVICE_METHODS, "auto")


class Drafted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence that the drafter is to follow."""

    serial: int
    """The scheduler's number of the sequence."""
    token_ids: Int32Vector
    """int32 [tokens]: all tokens so far."""


class Propose(Message, frozen=True, kw_only=True):
    """Ask a drafter for drafts, after telling it what changed.

    A sequence that is opened may also be in `serials`, without new tokens.
    """

    number: int
    """The number of this message; `Proposed` repeats it."""
    opened: tuple[Drafted, ...]
    """Sequences to follow from now on."""
    closed: Int64Vector
    """int64 [C]: sequences to forget."""
    serials: Int64Vector
    """int64 [N]: sequences with new tokens, or that want drafts."""
    counts: Int32Vector
    """int32 [N]: the number of new tokens of each."""
    token_ids: Int32Vector
    """int32 [sum of counts]: the new tokens, sequence by sequence."""
    wanted: Int32Vector
    """int32 [N]: the most drafts that each wants."""


class Proposed(Message, frozen=True, kw_only=True):
    """Answer a `Propose` with drafts."""

    number: int
    """The number of the `Propose`."""
    counts: Int32Vector
    """int32 [N]: the number of drafts for each of its `serials`."""
    token_ids: Int32Vector
    """int32 [sum of counts]: the drafts, sequence by sequence."""
    seconds: float
    """The time that the drafter took."""
