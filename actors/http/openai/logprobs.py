"""Log-probabilities in the shapes of OpenAI's API, and in vLLM's for those of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pageant.actors.frontend.outputs import Logprob, TokenLogprobs

LOWEST = -9999.0  # JSON has no infinity: what a mask leaves out


class TextLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of a completion; `text_offset` is the index of each token's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChatLogprob(msgspec.Struct, kw_only=True):
    """The log-probability of a token of a message."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatLogprob, kw_only=True):
    """A sampled token of a message, with the likeliest tokens at its place."""

    top_logprobs: list[ChatLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of a message."""

    content: list[ChatTokenLogprob]


class PromptLogprob(msgspec.Struct, kw_only=True):
    """The log-probability of a prompt's token, by its id."""

    logprob: float
    rank: int | None
    decoded_token: str | None


def text_logprobs(
    places: Sequence[TokenLogprobs | None],
    token_ids: Sequence[int],
    offset: int,
    as_ids: bool,
    first: str = "",
) -> tuple[TextLogprobs, int]:
    """Return the log-probabilities of tokens whose text begins at `offset`, and the offset after them.

    The first token of a prompt has a text only, `first`.
    """
    shape = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for place, token_id in zip(places, token_ids, strict=True):
        own = place[token_id] if place is not None else Logprob(0.0, None, first)
        shape.tokens.append(_shown(token_id, own, as_ids))
        shape.text_offset.append(offset)
        offset += len(own.decoded_token or "")
        shape.token_logprobs.append(_finite(own.logprob) if place is not None else None)
        shape.top_logprobs.append(
            None
            if place is None
            else {_shown(token, one, as_ids): _finite(one.logprob) for token, one in place.items()}
        )
    return shape, offset


def chat_logprobs(
    places: Sequence[TokenLogprobs],
    token_ids: Sequence[int],
    most: int,
    as_ids: bool,
    listed: Sequence[int] | None = None,
) -> ChatLogprobs:
    """Return the log-probabilities of a message's tokens, each with the `most` likeliest, or with the `listed`
    tokens.
    """
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                **_chat(token_id, place[token_id], as_ids),
                top_logprobs=[
                    ChatLogprob(**_chat(token, one, as_ids)) for token, one in _told(place, most, listed)
                ],
            )
            for place, token_id in zip(places, token_ids, strict=True)
        ]
    )


def prompt_logprobs(
    places: Sequence[TokenLogprobs | None],
) -> list[dict[str, PromptLogprob] | None]:
    """Return the log-probabilities of a prompt's tokens."""
    return [
        None
        if place is None
        else {
            str(token): PromptLogprob(
                logprob=_finite(one.logprob), rank=one.rank, decoded_token=one.decoded_token
            )
            for token, one in place.items()
        }
        for place in places
    ]


def _told(place: TokenLogprobs, most: int, listed: Sequence[int] | None) -> list[tuple[int, Logprob]]:
    """Return the tokens to tell of at a place, beside the one that is there."""
    if listed is not None:
        return [(token, place[token]) for token in listed]
    ranked = sorted(place.items(), key=lambda item: item[1].rank or 0)
    return ranked if most < 0 else ranked[:most]


def _chat(token_id: int, one: Logprob, as_ids: bool) -> dict[str, Any]:
    shown = _shown(token_id, one, as_ids)
    return {
        "token": shown,
        "logprob": _finite(one.logprob),
        "bytes": list(one.token_bytes or (one.decoded_token or "").encode()),
    }


def _shown(token_id: int, one: Logprob, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else one.decoded_token or ""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
