"""`/v1/embeddings` in OpenAI's shape, and vLLM's `/pooling` and `/classify`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Response, post

from pageant.actors.frontend.pooling import pooled_model
from pageant.actors.http.openapi import describe
from pageant.actors.http.pooling.taking import (
    Format,
    Inputs,
    PooledList,
    PooledRequest,
    Vector,
    Vectors,
    answer_list,
    checked_inputs,
    pooling_of,
    written,
)
from pageant.actors.http.service import Http, Service
from pageant.protocol.pooling import PoolingTask


class EmbeddingRequest(PooledRequest, kw_only=True):
    """`POST /v1/embeddings`."""

    input: Inputs
    encoding_format: Format = "float"
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """`POST /pooling`: any task of the model."""

    task: PoolingTask | None = None


class ClassificationRequest(PooledRequest, kw_only=True):
    """`POST /classify`."""

    input: Inputs


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


class EmbeddingList(PooledList, kw_only=True):
    """Embeddings, in the order of the texts."""

    data: list[Embedding]


class PoolingList(PooledList, kw_only=True):
    """Results, in the order of the texts."""

    data: list[PooledText]


class ClassificationList(PooledList, kw_only=True):
    """Classes, in the order of the texts."""

    data: list[Classification]


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post("/v1/embeddings", status_code=200, opt=describe(EmbeddingRequest, EmbeddingList))
    async def embeddings(request: Http) -> Response[Any]:
        """Embed texts."""
        taken = await service.take(request, EmbeddingRequest, "embd")
        asked = taken.asked
        params = pooling_of(asked, taken.served, "embed")
        texts = checked_inputs(asked.input, taken.served, asked.prompt_name)

        def data(vectors: Vectors) -> list[Embedding]:
            return [
                Embedding(index=index, embedding=written(one, asked.encoding_format, of_tokens=False))  # type: ignore[arg-type]
                for index, one in enumerate(vectors)
            ]

        return await answer_list(service, request, taken, texts, params, EmbeddingList, data)

    @post("/pooling", status_code=200, opt=describe(PoolingRequest, PoolingList))
    async def pooling(request: Http) -> Response[Any]:
        """Return what the model makes of texts."""
        taken = await service.take(request, PoolingRequest, "pool")
        asked = taken.asked
        params = pooling_of(asked, taken.served, asked.task)
        texts = checked_inputs(asked.input, taken.served, asked.prompt_name)

        def data(vectors: Vectors) -> list[PooledText]:
            return [
                PooledText(
                    index=index, data=written(one, asked.encoding_format, of_tokens=params.is_of_tokens)
                )
                for index, one in enumerate(vectors)
            ]

        return await answer_list(service, request, taken, texts, params, PoolingList, data)

    @post("/classify", status_code=200, opt=describe(ClassificationRequest, ClassificationList))
    async def classify(request: Http) -> Response[Any]:
        """Classify texts."""
        taken = await service.take(request, ClassificationRequest, "clas")
        params = pooling_of(taken.asked, taken.served, "classify")
        texts = checked_inputs(taken.asked.input, taken.served)
        labels = pooled_model(taken.served.limits).labels

        def data(vectors: Vectors) -> list[Classification]:
            return [
                Classification(
                    index=index,
                    label=labels[int(one[0].argmax())],
                    probs=one[0].tolist(),
                    num_classes=one.shape[1],
                )
                for index, one in enumerate(vectors)
            ]

        return await answer_list(service, request, taken, texts, params, ClassificationList, data)

    return [embeddings, pooling, classify]
