"""Texts that are embedded or classified, checked as early as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.prompts import PROMPT_CHARACTERS_MAX, Limits, check_text, vocabulary_ids
from pageant.protocol.checks import TOKEN_ID_MAX, check_integer, to_builtin
from pageant.protocol.errors import BadRequest
from pageant.protocol.pooling import PooledModel, PoolingParams, PoolingTask
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.tokenizing import ChatMessage, Tokenize, TokenizeChat

__all__ = [
    "NOTHING_SAMPLED",
    "Pooled",
    "bounded_text",
    "check_pair",
    "check_pooled_text",
    "check_pooling",
    "check_text_length",
    "pooled_model",
    "truncated_ids",
]

NOTHING_SAMPLED = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
"""The parameters of a request that samples nothing."""

Pooled = Tokenize | TokenizeChat | npt.NDArray[np.int32]
_OF_TASK: dict[str, tuple[PoolingTask, ...]] = {
    "embed": ("embed", "token_embed"),
    "classify": ("classify", "token_classify"),
}


def pooled_model(limits: Limits) -> PooledModel:
    """Return what a model makes of texts.

    Raises:
        BadRequest: it generates, and does nothing else.
    """
    if limits.pooled is None:
        raise BadRequest(
            "this model generates text; it neither embeds nor classifies. Serve one that does, or serve it with "
            "runner: pooling",
            "model",
        )
    return limits.pooled


def check_pooling(
    params: PoolingParams | None, limits: Limits, task: PoolingTask | None = None
) -> PoolingParams:
    """Return the parameters of a request to a model that pools, with its task.

    Args:
        task: what is asked for; None is what the model does.

    Raises:
        BadRequest: the model does something else, or its embeddings cannot be cut.
    """
    model, params = pooled_model(limits), params or PoolingParams()
    if not isinstance(params, PoolingParams):
        raise BadRequest(f"params is a {type(params).__name__}; expected PoolingParams", "params")
    if params.task is not None and task is not None and params.task != task:
        raise BadRequest(f"task is {params.task!r}; expected {task!r} here", "task")
    usual = ("token_" if model.of_tokens else "") + model.task
    wanted = task or params.task or cast(PoolingTask, usual)
    if wanted not in _OF_TASK[model.task] or (model.of_tokens and not wanted.startswith("token_")):
        does = f"does {usual}" if model.of_tokens else f"does {' or '.join(_OF_TASK[model.task])}"
        raise BadRequest(f"the task is {wanted}; this model {does}", "task" if task is None else "model")
    _check_dimensions(params.dimensions, model)
    return msgspec.structs.replace(params, task=wanted)


def _check_dimensions(dimensions: int | None, model: PooledModel) -> None:
    if dimensions is None:
        return
    if model.dimensions is None:
        raise BadRequest(
            f"dimensions is {dimensions}; this model was not made for vectors that are cut (no matryoshka_dimensions "
            f"and no is_matryoshka in its config.json): expected none, for all {model.size}",
            "dimensions",
        )
    if dimensions > model.size or (model.dimensions and dimensions not in model.dimensions):
        known = ", ".join(map(str, model.dimensions)) if model.dimensions else f"1 to {model.size}"
        raise BadRequest(f"dimensions is {dimensions}; expected {known}", "dimensions")


def check_pooled_text(
    text: object, limits: Limits, prompt_name: str | None = None, name: str = "input"
) -> Pooled:
    """Return a text as a request to the tokenizer, with what texts of its kind begin with, or ids as int32 [tokens].

    Args:
        prompt_name: the kind, of the model's prompts; None is its default.
        name: the name of the parameter.

    Raises:
        BadRequest: neither a text nor token ids, empty, too long, or of another vocabulary.
    """
    model = pooled_model(limits)
    if isinstance(text, str):
        _check_characters(text, name)
        return Tokenize(text=_lowered(_prefix(prompt_name, model) + to_builtin(text), model))
    if isinstance(text, Sequence | np.ndarray) and not isinstance(text, bytes | bytearray):
        if prompt_name is not None:
            raise BadRequest("prompt_name is given; expected none with token ids", "prompt_name")
        return _ids(text, limits, name)
    raise BadRequest(f"{name} is a {type(text).__name__}; expected a text or a list of token ids", name)


def check_pair(first: str, second: str, limits: Limits, second_max: int | None = None) -> Pooled:
    """Return a pair of texts as a request to the tokenizer.

    Args:
        second_max: the most tokens of the second text, which is cut to them; None is no bound.

    Raises:
        BadRequest: one of them is no text, or too long.
    """
    model = pooled_model(limits)
    for text in (first, second):
        _check_characters(text, "text", may_be_empty=True)
    if second_max is not None:
        check_integer("max_tokens_per_doc", second_max, 1, TOKEN_ID_MAX)
        if model.has_pair_template:
            raise BadRequest(
                "max_tokens_per_doc is given; expected none: this model's template puts pairs together",
                "max_tokens_per_doc",
            )
    if model.has_pair_template:
        turns = (ChatMessage(role="query", content=first), ChatMessage(role="document", content=second))
        return TokenizeChat(messages=turns, add_generation_prompt=False)
    return Tokenize(text=_lowered(first, model), pair=_lowered(second, model), pair_tokens_max=second_max)


def bounded_text(
    prompt: Tokenize | TokenizeChat, params: PoolingParams, max_model_len: int
) -> Tokenize | TokenizeChat:
    """Return a text with the most tokens that it may have, or those that it is cut to."""
    most = params.truncate_prompt_tokens
    if most is None or isinstance(prompt, TokenizeChat):
        return msgspec.structs.replace(prompt, tokens_max=None if most is not None else max_model_len)
    cut = max_model_len if most < 0 else most
    return msgspec.structs.replace(prompt, truncate_to=cut, truncation_side=params.truncation_side or "right")


def truncated_ids(
    token_ids: npt.NDArray[np.int32], params: PoolingParams, max_model_len: int
) -> npt.NDArray[np.int32]:
    """Return the first token ids, int32 [tokens], or the last, as the parameters say."""
    most = params.truncate_prompt_tokens
    if most is None:
        return token_ids
    cut = max_model_len if most < 0 else most
    return token_ids[-cut:] if params.truncation_side == "left" else token_ids[:cut]


def check_text_length(num_tokens: int, max_model_len: int, name: str = "input") -> None:
    """Refuse a text without tokens, or with more than the model takes."""
    if not num_tokens:
        raise BadRequest("the text has no tokens", name)
    if num_tokens > max_model_len:
        raise BadRequest(
            f"the text has {num_tokens} tokens; at most {max_model_len} are taken (max_model_len). "
            "truncate_prompt_tokens: -1 cuts it",
            name,
        )


def _prefix(prompt_name: str | None, model: PooledModel) -> str:
    if prompt_name is None:
        return "" if model.default_prompt is None else model.prompts[model.default_prompt]
    if prompt_name not in model.prompts:
        known = (
            f"one of {', '.join(map(repr, model.prompts))}" if model.prompts else "none: this model has none"
        )
        raise BadRequest(f"prompt_name is {prompt_name!r:.200}; expected {known}", "prompt_name")
    return model.prompts[prompt_name]


def _lowered(text: str, model: PooledModel) -> str:
    return text.lower() if model.lowercases else text


def _check_characters(text: Any, name: str, *, may_be_empty: bool = False) -> None:
    if not isinstance(text, str):
        raise BadRequest(f"{name} is a {type(text).__name__}; expected a text", name)
    if not text and not may_be_empty:
        raise BadRequest(f"{name} is empty; expected some text", name)
    if len(text) > PROMPT_CHARACTERS_MAX:
        raise BadRequest(
            f"{name} has {len(text)} characters; at most {PROMPT_CHARACTERS_MAX} are taken", name
        )
    check_text(text, name)


def _ids(ids: Sequence[Any] | npt.NDArray[Any], limits: Limits, name: str) -> npt.NDArray[np.int32]:
    if not len(ids):
        raise BadRequest(f"{name} is empty; expected at least one token id", name)
    return vocabulary_ids(ids, limits.vocab_size, name)
