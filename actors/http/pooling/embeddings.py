"""`/v1/embeddings` in OpenAI's shape, and vLLM's `/pooling` and `/classify`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Response, post

from pageant.actors.frontend.pooling import pooled_model
from pageant.actors.http.answers import Piece
from pageant.actors.http.openapi import describe
from pageant.actors.http.pooling.taking import (
    Format,
    Inputs,
    PooledUsage,
    Vector,
    answer,
    checked_inputs,
    pooling_of,
    usage_of,
    vectors_of,
    written,
)
from pageant.actors.http.service import Http, Service
from pageant.protocol.pooling import PoolingTask


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`."""

    input: Inputs
    model: str | None = None
    encoding_format: Format = "float"
    dimensions: int | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    prompt_name: str | None = None
    priority: int | None = None
    request_id: str | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """`POST /pooling`: any task of the model."""

    task: PoolingTask | None = None


class ClassificationRequest(msgspec.Struct, kw_only=True):
    """`POST /classify`."""

    input: Inputs
    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    priority: int | None = None
    request_id: str | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """The embedding of one text: numbers, or little-endian float32 in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class PooledText(msgspec.Struct, kw_only=True):
    """The result of one text: a vector, or one of each token."""

    index: int
    data: Vector
    object: Literal["pooling"] = "pooling"


class Classification(msgspec.Struct, kw_only=True):
    """The scores of one text's labels, and the best one."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    """Embeddings, in the order of the texts."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: PooledUsage
    object: Literal["list"] = "list"


class PoolingList(msgspec.Struct, kw_only=True):
    """Results, in the order of the texts."""

    id: str
    created: int
    model: str
    data: list[PooledText]
    usage: PooledUsage
    object: Literal["list"] = "list"


class ClassificationList(msgspec.Struct, kw_only=True):
    """Classes, in the order of the texts."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: PooledUsage
    object: Literal["list"] = "list"


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/embeddings", status_code=200, opt=describe(EmbeddingRequest, EmbeddingList))
    async def embeddings(request: Http) -> Response[Any]:
        """Embed texts."""
        taken = await service.take(request, EmbeddingRequest, "embd")
        asked, created = taken.asked, service.now()
        params = pooling_of(asked, taken.served, "embed")
        texts = checked_inputs(asked.input, taken.served, params, asked.prompt_name)

        async def whole(pieces: list[Piece]) -> msgspec.Struct:
            vectors = vectors_of(pieces)
            data = [
                Embedding(index=index, embedding=written(one, asked.encoding_format, of_tokens=False))  # type: ignore[arg-type]
                for index, one in enumerate(vectors)
            ]
            return EmbeddingList(
                id=taken.name, created=created, model=taken.served.name, data=data, usage=usage_of(pieces)
            )

        return await answer(service, request, taken, texts, params, whole)

    @post("/pooling", status_code=200, opt=describe(PoolingRequest, PoolingList))
    async def pooling(request: Http) -> Response[Any]:
        """Return what the model makes of texts."""
        taken = await service.take(request, PoolingRequest, "pool")
        asked, created = taken.asked, service.now()
        params = pooling_of(asked, taken.served, asked.task)
        texts = checked_inputs(asked.input, taken.served, params, asked.prompt_name)

        async def whole(pieces: list[Piece]) -> msgspec.Struct:
            data = [
                PooledText(
                    index=index, data=written(one, asked.encoding_format, of_tokens=params.is_of_tokens)
                )
                for index, one in enumerate(vectors_of(pieces))
            ]
            return PoolingList(
                id=taken.name, created=created, model=taken.served.name, data=data, usage=usage_of(pieces)
            )

        return await answer(service, request, taken, texts, params, whole)

    @post("/classify", status_code=200, opt=describe(ClassificationRequest, ClassificationList))
    async def classify(request: Http) -> Response[Any]:
        """Classify texts."""
        taken = await service.take(request, ClassificationRequest, "clas")
        asked, created = taken.asked, service.now()
        params = pooling_of(asked, taken.served, "classify")
        texts = checked_inputs(asked.input, taken.served, params)
        labels = pooled_model(taken.served.limits).labels

        async def whole(pieces: list[Piece]) -> msgspec.Struct:
            data = [
                Classification(
                    index=index,
                    label=labels[int(one[0].argmax())],
                    probs=one[0].tolist(),
                    num_classes=one.shape[1],
                )
                for index, one in enumerate(vectors_of(pieces))
            ]
            return ClassificationList(
                id=taken.name, created=created, model=taken.served.name, data=data, usage=usage_of(pieces)
            )

        return await answer(service, request, taken, texts, params, whole)

    return [embeddings, pooling, classify]
