"""`/score` in vLLM's shape, and reranking in that of Cohere's and Jina's clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from litestar import Response, post

from pageant.actors.frontend.pairs import check_is_scorer, cosine, text_pairs
from pageant.actors.frontend.pooling import Pooled, check_pair, check_pooled_text, pooled_model
from pageant.actors.http.answers import Piece
from pageant.actors.http.openapi import describe
from pageant.actors.http.pooling.taking import (
    INPUTS_MAX,
    PooledList,
    PooledRequest,
    PooledUsage,
    Vectors,
    answer,
    answer_list,
    pooling_of,
    usage_of,
    vectors_of,
)
from pageant.actors.http.served import Served
from pageant.actors.http.service import Http, Service
from pageant.protocol.errors import BadRequest


class ScoreRequest(PooledRequest, kw_only=True):
    """`POST /score`: `text_1` and `text_2`, or the same as `queries` and `documents`."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs to score.

        Raises:
            BadRequest: texts are missing or given twice, or their numbers differ.
        """
        sides = []
        for names in (("text_1", "queries", "data_1"), ("text_2", "documents", "data_2")):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) != 1:
                found = " and ".join(given) or "none"
                raise BadRequest(f"{found} is given; expected one of {', '.join(names)}", names[0])
            sides.append(getattr(self, given[0]))
        return text_pairs(sides[0], sides[1], names=("text_1", "text_2"))


class TextDocument(msgspec.Struct, kw_only=True):
    """A document as Cohere's clients may give it, and as answers show it."""

    text: str


class RerankRequest(PooledRequest, kw_only=True):
    """`POST /rerank`, `/v1/rerank` and `/v2/rerank`."""

    query: str
    documents: list[str | TextDocument]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None


class Score(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(PooledList, kw_only=True):
    """Scores, in the order of the pairs."""

    data: list[Score]


class Ranked(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A document's place among those of the request, and its score."""

    index: int
    relevance_score: float
    document: TextDocument | None = None


class Ranking(msgspec.Struct, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PooledUsage


class _Scoring:
    """Pairs of texts as a model scores them: together, or as two embeddings."""

    def __init__(
        self,
        pairs: list[tuple[str, str]],
        served: Served,
        second_max: int | None = None,
    ) -> None:
        """Args: second_max: the most tokens of each second text."""
        self._pairs = pairs
        self._embeds = pooled_model(served.limits).task == "embed"
        if len(pairs) > INPUTS_MAX:
            raise BadRequest(
                f"the request has {len(pairs)} pairs; at most {INPUTS_MAX} are taken", "documents"
            )
        check_is_scorer(served.limits)
        self.texts: list[Pooled]
        if self._embeds:
            if second_max is not None:
                raise BadRequest(
                    "max_tokens_per_doc is given; expected none: this model embeds texts. truncate_prompt_tokens cuts "
                    "them",
                    "max_tokens_per_doc",
                )
            every = dict.fromkeys(text for pair in pairs for text in pair)
            self._places = {text: place for place, text in enumerate(every)}
            self.texts = [check_pooled_text(text, served.limits) for text in self._places]
        else:
            self.texts = [check_pair(*pair, served.limits, second_max) for pair in pairs]

    def scores(self, vectors: Vectors) -> list[float]:
        """Return the score of each pair, from the results of `texts`."""
        if not self._embeds:
            return [float(one[0, 0]) for one in vectors]
        return [
            cosine(vectors[self._places[first]][0], vectors[self._places[second]][0])
            for first, second in self._pairs
        ]


def _texts(documents: Sequence[str | TextDocument]) -> list[str]:
    return [one if isinstance(one, str) else one.text for one in documents]


def routes(service: Service) -> list[Any]:
    """The routes of this family."""

    @post(["/score", "/v1/score"], status_code=200, opt=describe(ScoreRequest, ScoreList))
    async def score(request: Http) -> Response[Any]:
        """Score pairs of texts."""
        taken = await service.take(request, ScoreRequest, "scor")
        params = pooling_of(taken.asked, taken.served, None)
        scoring = _Scoring(taken.asked.pairs(), taken.served)

        def data(vectors: Vectors) -> list[Score]:
            return [Score(index=index, score=one) for index, one in enumerate(scoring.scores(vectors))]

        return await answer_list(service, request, taken, scoring.texts, params, ScoreList, data)

    @post(["/rerank", "/v1/rerank", "/v2/rerank"], status_code=200, opt=describe(RerankRequest, Ranking))
    async def rerank(request: Http) -> Response[Any]:
        """Rank documents by how well they answer a query."""
        taken = await service.take(request, RerankRequest, "rank")
        asked, documents = taken.asked, _texts(taken.asked.documents)
        params = pooling_of(asked, taken.served, None)
        if not documents:
            raise BadRequest("documents is empty; expected at least one", "documents")
        if asked.top_n is not None and asked.top_n < 1:
            raise BadRequest(f"top_n is {asked.top_n}; expected at least 1", "top_n")
        pairs = [(asked.query, one) for one in documents]
        scoring = _Scoring(pairs, taken.served, asked.max_tokens_per_doc)
        # Cohere's second version shows none.
        shows = request.url.path != "/v2/rerank" if asked.return_documents is None else asked.return_documents

        async def whole(pieces: list[Piece]) -> msgspec.Struct:
            found = scoring.scores(vectors_of(pieces))
            order = sorted(range(len(found)), key=lambda index: (-found[index], index))[: asked.top_n]
            results = [
                Ranked(
                    index=index,
                    relevance_score=found[index],
                    document=TextDocument(text=documents[index]) if shows else None,
                )
                for index in order
            ]
            return Ranking(id=taken.name, model=taken.served.name, results=results, usage=usage_of(pieces))

        return await answer(service, request, taken, scoring.texts, params, whole)

    return [score, rerank]
