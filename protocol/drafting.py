"""scheduler ──Propose──▶ drafter ──Proposed──▶ scheduler: guesses of what comes next.

After each step the scheduler tells the drafter what was drawn, and for which sequences it would like drafts. The
next step verifies them: each position's token is drawn as it would be without speculation, and a draft is taken
while it equals that token. A drafter can therefore make an answer faster, and never other than it is. It may be
slow, wrong or dead: what comes too late, is too long or is no token is passed over and counted.

A drafter on a device (`speculation.method` draft, eagle or medusa) speaks no messages: the executor loads it, and its
drafts come with the step's result.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.protocol.arrays import Int32Vector, Int64Vector
from pageant.protocol.message import Message

DRAFTS_MAX = 62  # with the token before them, they fit a mask of ancestors


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are guessed ahead.

    Attributes:
        method: `ngram` (what followed the same tokens before), `draft` (a smaller model), `eagle`, `medusa`, `auto`
            (what `model` holds, or ngram), or `module:Class` of your own (see docs/writing-a-drafter.md).
        model: the checkpoint of the draft model, or of the heads.
        tokens: most drafts for each sequence in a step.
        adaptive: propose fewer, down to none, where they are seldom right or verifying them takes long.
        patience: seconds that a step waits for a drafter in another actor.
        options: of a drafter of your own.
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
        if self.method in DEVICE_METHODS and self.model is None:
            raise ValueError(f"method {self.method} needs a model; expected a checkpoint's folder")
        if self.patience <= 0:
            raise ValueError(f"patience is {self.patience}; expected more than 0 seconds")

    @property
    def on_device(self) -> bool:
        """Whether the executor drafts, and no actor."""
        return self.method in DEVICE_METHODS


DEVICE_METHODS = ("draft", "eagle", "medusa")
METHODS = ("ngram", *DEVICE_METHODS, "auto")


class Drafted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence that the drafter is to follow: all its tokens so far."""

    serial: int
    token_ids: Int32Vector


class Propose(Message, frozen=True, kw_only=True):
    """Follow the `opened` sequences, forget the `closed` ones; sequence `serials[i]` has `counts[i]` new tokens, next
    in `token_ids`, and at most `wanted[i]` drafts are asked for. One that is opened may also be among them, without
    new tokens."""

    number: int
    opened: tuple[Drafted, ...]
    closed: Int64Vector
    serials: Int64Vector
    counts: Int32Vector
    token_ids: Int32Vector
    wanted: Int32Vector


class Proposed(Message, frozen=True, kw_only=True):
    """The drafts for `Propose` of that number: `counts[i]` of `token_ids` for its `serials[i]`."""

    number: int
    counts: Int32Vector
    token_ids: Int32Vector
    seconds: float
