"""Shapes that several of OpenAI's answers have in common."""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.actors.http.answers import Answers

Reason = Literal["stop", "length", "tool_calls", "abort", "error"]


class Usage(msgspec.Struct, kw_only=True):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


def usage_of(answers: Answers) -> Usage:
    """Return the usage of a request by the tokens that its client was given so far: all of them at its end."""
    taken, made = answers.num_prompt_tokens, answers.num_taken_tokens
    return Usage(
        prompt_tokens=taken,
        completion_tokens=made,
        total_tokens=taken + made,
        prompt_tokens_details={"cached_tokens": answers.num_cached_tokens},
        completion_tokens_details={"reasoning_tokens": answers.num_reasoning_tokens},
    )


class Model(msgspec.Struct, kw_only=True):
    """A model that is served, or an adapter of one, its parent.

    Attributes:
        root: its name too: paths are nobody's business.
        weight_version: what the weights are called that requests are computed with.
        input_modalities: what prompts may hold: text, image, video or audio.
        loaded: whether requests are computed at once; a model that sleeps is loaded or woken first.
    """

    id: str
    created: int
    max_model_len: int
    root: str
    parent: str | None = None
    weight_version: str = ""
    input_modalities: list[str] = msgspec.field(default_factory=lambda: ["text"])
    loaded: bool = True
    object: Literal["model"] = "model"
    owned_by: str = "pageant"


class ModelList(msgspec.Struct, kw_only=True):
    """A list of all models."""

    data: list[Model]
    object: Literal["list"] = "list"
