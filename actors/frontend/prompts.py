"""Prompts as users give them, checked as early as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import int32
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import ChatMessage, Tokenize, TokenizeChat

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]
PROMPT_CHARACTERS_MAX = 64_000_000


def check_prompt(prompt: object, vocab_size: int, max_model_len: int) -> Tokenize | npt.NDArray[np.int32]:
    """A text as a request to the tokenizer, token ids as an array.

    Raises:
        BadRequest: neither, empty, too long, or not ids of this model.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise BadRequest("the prompt is empty; expected some text", "prompt")
        if len(prompt) > PROMPT_CHARACTERS_MAX:
            raise BadRequest(
                f"the prompt has {len(prompt)} characters; at most {PROMPT_CHARACTERS_MAX} are taken",
                "prompt",
            )
        check_text(prompt, "prompt")
        return Tokenize(text=prompt)
    if isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes | bytearray):
        return check_token_ids(prompt, vocab_size, max_model_len)
    raise BadRequest(
        f"the prompt is a {type(prompt).__name__}; expected a str or a list of token ids", "prompt"
    )


def check_text(text: str, place: str) -> None:
    """Refuses lone surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{place}: character {error.start} is a lone surrogate, not text", place) from None


def check_token_ids(
    ids: Sequence[Any] | npt.NDArray[Any], vocab_size: int, max_model_len: int
) -> npt.NDArray[np.int32]:
    """Token ids as an int32 array.

    Raises:
        BadRequest: none, too many, or one that is not an id of this model; names its index.
    """
    check_length(len(ids), max_model_len)
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            raise BadRequest(
                f"prompt[{index}] is {token!r}; expected a token id from 0 to {vocab_size - 1}", "prompt"
            )
    return int32(ids)


def check_length(num_tokens: int, max_model_len: int) -> None:
    """Refuses a prompt without tokens, or one that leaves no room for an answer."""
    if not num_tokens:
        raise BadRequest("the prompt has no tokens", "prompt")
    if num_tokens >= max_model_len:
        raise BadRequest(
            f"the prompt has {num_tokens} tokens; max_model_len is {max_model_len}, so at most "
            f"{max_model_len - 1} leave room for an answer",
            "prompt",
        )


def check_conversation(messages: object) -> TokenizeChat:
    """A conversation as a request to the tokenizer.

    Raises:
        BadRequest: not a list of messages with a role and a content; names the index.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        kind = type(messages).__name__
        raise BadRequest(
            f"messages is a {kind}; expected a list of {{'role': ..., 'content': ...}}", "messages"
        )
    if not messages:
        raise BadRequest("messages is empty; expected at least one message", "messages")
    return TokenizeChat(messages=tuple(_check_message(message, i) for i, message in enumerate(messages)))


def _check_message(message: object, index: int) -> ChatMessage:
    place = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise BadRequest(f"{place} is a {type(message).__name__}; expected a mapping", "messages")
    unknown = set(message) - {"role", "content"}
    if unknown:
        raise BadRequest(
            f"{place} has {min(map(str, unknown))!r}; expected role and content only", "messages"
        )
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise BadRequest(f"{place}.{key} is {message.get(key)!r}; expected a text", "messages")
        check_text(message[key], f"{place}.{key}")
    return ChatMessage(role=message["role"], content=message["content"])


def check_params(params: object, vocab_size: int, place: str = "params") -> SamplingParams:
    """Sampling parameters, or the defaults for None.

    Raises:
        BadRequest: another type, or tokens that are no ids of this model.
    """
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise BadRequest(f"{place} is a {type(params).__name__}; expected SamplingParams", place)
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        tokens = getattr(params, name) or ()
        if max(tokens, default=0) >= vocab_size:
            index, token = next(found for found in enumerate(tokens) if found[1] >= vocab_size)
            place = f"{name}[{index}]" if name != "logit_bias" else "logit_bias: a token id"
            raise BadRequest(f"{place} is {token}; expected a token id from 0 to {vocab_size - 1}", name)
    return params
