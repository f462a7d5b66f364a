"""Texts of a request, checked, on their way to a model that pools; and what comes of them."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from litestar import Response

from pageant.actors.frontend.pooling import (
    NOTHING_SAMPLED,
    Pooled,
    check_pooled_text,
    check_pooling,
    pooled_model,
)
from pageant.actors.frontend.prompts import RequestSettings, check_settings
from pageant.actors.http.answers import Piece
from pageant.actors.http.errors import failure
from pageant.actors.http.served import Served
from pageant.actors.http.service import Http, Service, Taken, respond
from pageant.protocol.errors import BadRequest
from pageant.protocol.pooling import PoolingParams, PoolingTask
from pageant.protocol.serving import Finished

__all__ = [
    "INPUTS_MAX",
    "Format",
    "Inputs",
    "PooledList",
    "PooledRequest",
    "PooledUsage",
    "Vector",
    "Vectors",
    "answer",
    "answer_list",
    "checked_inputs",
    "pooling_of",
    "usage_of",
    "vectors_of",
    "written",
]

INPUTS_MAX = 2048
"""The most texts of one request, as OpenAI's API has it."""

Inputs = str | list[str | int | list[int]]
Format = Literal["float", "base64"]
Vector = list[float | list[float]] | str
Vectors = Sequence[npt.NDArray[np.float32]]


class PooledRequest(msgspec.Struct, kw_only=True):
    """Fields that requests of all these routes have."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    priority: int | None = None
    request_id: str | None = None


class PooledUsage(msgspec.Struct, kw_only=True):
    """Tokens of all texts of a request."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int] | None = None


class PooledList(msgspec.Struct, kw_only=True):
    """Results of a request's texts in their order; subclasses have them in `data`."""

    id: str
    created: int
    model: str
    usage: PooledUsage
    object: Literal["list"] = "list"


def pooling_of(asked: Any, served: Served, task: PoolingTask | None) -> PoolingParams:
    """Return the parameters of a request.

    Raises:
        BadRequest: see `check_pooling`.
    """
    names = ("dimensions", "normalize", "use_activation", "truncate_prompt_tokens", "truncation_side")
    given = {name: value for name in names if (value := getattr(asked, name, None)) is not None}
    return check_pooling(PoolingParams(**given), served.limits, task)


def checked_inputs(inputs: Inputs, served: Served, prompt_name: str | None = None) -> list[Pooled]:
    """Return the texts of a request.

    Raises:
        BadRequest: there are none or too many, or one is out of range; names it by its index.
    """
    pooled_model(served.limits)
    are_ids = not isinstance(inputs, str) and inputs and all(isinstance(one, int) for one in inputs)
    many: list[Any] = [inputs] if isinstance(inputs, str) or are_ids else inputs
    if not many:
        raise BadRequest(
            "input is empty; expected a text, or a list of texts or of lists of token ids", "input"
        )
    if len(many) > INPUTS_MAX:
        raise BadRequest(f"input has {len(many)} texts; at most {INPUTS_MAX} are taken", "input")
    alone = many[0] is inputs
    found = []
    for index, one in enumerate(many):
        try:
            found.append(check_pooled_text(one, served.limits, prompt_name))
        except BadRequest as error:
            message = str(error) if alone else f"input[{index}]: {error}"
            raise BadRequest(message, error.parameter) from None
    return found


async def answer(
    service: Service,
    request: Http,
    taken: Taken[Any],
    texts: Sequence[Pooled],
    params: PoolingParams,
    whole: Callable[[list[Piece]], Awaitable[msgspec.Struct]],
) -> Response[Any]:
    """Answer a request when all of its texts have been computed."""
    settings = RequestSettings()
    if taken.asked.priority is not None:
        settings = check_settings({"priority": taken.asked.priority})
    answers = service.begin(
        taken.served,
        texts,
        NOTHING_SAMPLED,
        taken.name,
        settings,
        whole=True,
        pooling=[params] * len(texts),
    )
    return await respond(service, request, answers, whole, None, taken.headers)


async def answer_list(
    service: Service,
    request: Http,
    taken: Taken[Any],
    texts: Sequence[Pooled],
    params: PoolingParams,
    kind: Callable[..., PooledList],
    data: Callable[[Vectors], list[Any]],
) -> Response[Any]:
    """Answer a request with a list of this kind, whose `data` is made of the results of the texts."""
    created = service.now()

    async def whole(pieces: list[Piece]) -> msgspec.Struct:
        return kind(
            id=taken.name,
            created=created,
            model=taken.served.name,
            data=data(vectors_of(pieces)),
            usage=usage_of(pieces),
        )

    return await answer(service, request, taken, texts, params, whole)


def vectors_of(pieces: Sequence[Piece]) -> list[npt.NDArray[np.float32]]:
    """Return the result of each text, float32 [1 or tokens, size], in their order.

    Raises:
        Exception: a text was aborted, or its deadline passed.
    """
    found = []
    for piece in sorted(pieces, key=lambda piece: piece.choice.index):
        if piece.finished is None or piece.finished.pooled is None:
            raise failure(piece.finished or Finished(reason="abort", message="the request was aborted"))
        found.append(piece.finished.pooled)
    return found


def usage_of(pieces: Sequence[Piece]) -> PooledUsage:
    """Return the tokens of all texts."""
    count = sum(len(piece.choice.prompt.token_ids) for piece in pieces)
    cached = sum(piece.finished.num_cached_tokens for piece in pieces if piece.finished is not None)
    details = {"cached_tokens": cached} if cached else None
    return PooledUsage(prompt_tokens=count, total_tokens=count, prompt_tokens_details=details)


def written(vectors: npt.NDArray[np.float32], encoding: Format, *, of_tokens: bool) -> Vector:
    """Return vectors, float32 [1 or tokens, size], as numbers, or as little-endian floats in base64."""
    found = vectors if of_tokens else vectors[0]
    if encoding == "base64":
        return base64.b64encode(np.ascontiguousarray(found, "<f4").tobytes()).decode()
    numbers: Vector = found.tolist()
    return numbers
