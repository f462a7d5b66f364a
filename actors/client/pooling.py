"""Embeddings, classes and scores for users, with the names that users of vLLM know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.client.asking import as_prompts, asked, either
from pageant.actors.client.batching import Batch
from pageant.actors.client.lora import one_each
from pageant.actors.client.outputs import Completion
from pageant.actors.client.session import Session
from pageant.actors.frontend.outputs import RequestFailed
from pageant.actors.frontend.pairs import check_is_scorer, cosine, text_pairs
from pageant.actors.frontend.pooling import (
    NOTHING_SAMPLED,
    Pooled,
    check_pair,
    check_pooled_text,
    check_pooling,
    pooled_model,
)
from pageant.protocol.errors import BadRequest, RequestExpired
from pageant.protocol.pooling import PoolingParams, PoolingTask

__all__ = [
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "PoolingMethods",
    "PoolingOutput",
    "PoolingRequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "pooled_output",
]

Outputs = TypeVar("Outputs")
Text = str | Sequence[int]
AnyPoolingParams = PoolingParams | Sequence[PoolingParams] | None


@dataclass(frozen=True)
class PoolingOutput:
    """The result of a text.

    Attributes:
        data: float32 [size], or [tokens, size] where a vector of each token is asked for.
    """

    data: npt.NDArray[np.float32]


@dataclass(frozen=True)
class EmbeddingOutput:
    """The embedding of a text."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Return the embedding's width."""
        return len(self.embedding)


@dataclass(frozen=True)
class ClassificationOutput:
    """The scores of a text's labels, in their order."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Return the number of labels."""
        return len(self.probs)


@dataclass(frozen=True)
class ScoringOutput:
    """The score of a pair: a measure of how well its texts belong together."""

    score: float


@dataclass(frozen=True)
class PoolingRequestOutput(Generic[Outputs]):
    """A text, and what was made of it.

    Attributes:
        prompt: the text as the model sees it; None where token ids were given.
        num_cached_tokens: tokens whose KV was found in the prefix cache.
    """

    request_id: str
    outputs: Outputs
    prompt_token_ids: list[int]
    prompt: str | None = None
    num_cached_tokens: int = 0
    finished: bool = True


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]


def pooled_output(completion: Completion, *, of_tokens: bool) -> PoolingRequestOutput[PoolingOutput]:
    """Return what was made of the text of a request that has ended.

    Raises:
        RequestExpired: its deadline passed before.
        RequestFailed: it was aborted.
    """
    end = completion.end
    if end is None or end.pooled is None:
        message = (end.message if end is not None else None) or "the request was aborted"
        raise (RequestExpired if end is not None and end.cause == "deadline" else RequestFailed)(message)
    return PoolingRequestOutput(
        request_id=completion.request_id,
        outputs=PoolingOutput(end.pooled if of_tokens else end.pooled[0]),
        prompt_token_ids=completion.prompt_token_ids,
        prompt=completion.prompt,
        num_cached_tokens=end.num_cached_tokens,
    )


class PoolingMethods:
    """Methods of `LLM` for models that embed and classify."""

    _session: Session
    _progress: bool

    def _load_adapters(self, given: Any) -> None:
        raise NotImplementedError

    def embed(
        self,
        prompts: Text | Sequence[Text],
        params: AnyPoolingParams = None,
        *,
        prompt_name: str | None = None,
        **given: Any,
    ) -> list[EmbeddingRequestOutput]:
        """Embeds texts, batched together; the outputs are in the texts' order.

        Args:
            prompts: texts or lists of token ids; or a single one.
            params: for all texts, or one for each. `pooling_params` is another name.
            prompt_name: the kind of the texts, of those whose beginnings the checkpoint names (`query`, say).
            given: see `CallSettings`; and `truncate_prompt_tokens`, `dimensions` for all texts.

        Raises:
            BadRequest: the model does not embed, or a text or a parameter is out of range; names the text by its
                index.
            RequestFailed, PeerGone: an actor died with a request in its hands.
        """
        found = self._pool(prompts, params, "embed", prompt_name, given)
        return [_with(one, EmbeddingOutput(one.outputs.data.tolist())) for one in found]

    def encode(
        self,
        prompts: Text | Sequence[Text],
        params: AnyPoolingParams = None,
        *,
        pooling_task: PoolingTask | None = None,
        **given: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Returns what the model makes of texts as arrays; with `token_embed` or `token_classify`, of each token."""
        return self._pool(prompts, params, pooling_task, given.pop("prompt_name", None), given)

    def classify(
        self, prompts: Text | Sequence[Text], params: AnyPoolingParams = None, **given: Any
    ) -> list[ClassificationRequestOutput]:
        """Classifies texts: each one's scores of the checkpoint's labels. See `embed`."""
        found = self._pool(prompts, params, "classify", None, given)
        return [_with(one, ClassificationOutput(one.outputs.data.tolist())) for one in found]

    def reward(
        self, prompts: Text | Sequence[Text], params: AnyPoolingParams = None, **given: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Scores texts by a reward model: a score of the text, or of each token where the model has those."""
        model = pooled_model(self._session.limits)
        if model.task != "classify":
            raise BadRequest("this model embeds texts and has no scores", "model")
        return self._pool(prompts, params, None, None, given)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        params: PoolingParams | None = None,
        **given: Any,
    ) -> list[ScoringRequestOutput]:
        """Scores pairs of texts: by a model of pairs, or by the cosine of their embeddings.

        Args:
            data_1: one text, for all of `data_2`; or as many as these.

        Raises:
            BadRequest: the numbers of texts differ, or the model has several labels.
        """
        pairs = text_pairs(data_1, data_2)
        if pooled_model(self._session.limits).task == "embed":
            return self._score_embeddings(pairs, params, given)
        check_is_scorer(self._session.limits)
        params = either(params, given.pop("pooling_params", None), "params", "pooling_params")
        own = check_pooling(_with_fields(params, _take_fields(given)), self._session.limits, "classify")
        checked = [_at(index, check_pair, *pair, self._session.limits) for index, pair in enumerate(pairs)]
        found = self._run_pooled(checked, [own] * len(checked), given)
        return [_with(one, ScoringOutput(float(one.outputs.data[0]))) for one in found]

    def _score_embeddings(
        self, pairs: list[tuple[str, str]], params: PoolingParams | None, given: dict[str, Any]
    ) -> list[ScoringRequestOutput]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        found = dict(zip(texts, self._pool(texts, params, "embed", None, given), strict=True))
        scored = []
        for first, second in pairs:
            one, other = found[first], found[second]
            ids = [*one.prompt_token_ids, *other.prompt_token_ids]
            score = ScoringOutput(cosine(one.outputs.data, other.outputs.data))
            scored.append(PoolingRequestOutput(f"{one.request_id}_{other.request_id}", score, ids))
        return scored

    def _pool(
        self,
        prompts: Any,
        params: Any,
        task: PoolingTask | None,
        prompt_name: str | None,
        given: dict[str, Any],
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        limits = self._session.limits
        many = as_prompts(prompts)
        params = either(params, given.pop("pooling_params", None), "params", "pooling_params")
        fields = _take_fields(given)
        each = one_each("params", params, len(many)) if isinstance(params, Sequence) else [params] * len(many)
        own = [check_pooling(_with_fields(one, fields), limits, task) for one in each]
        checked = [
            _at(index, check_pooled_text, text, limits, prompt_name) for index, text in enumerate(many)
        ]
        return self._run_pooled(checked, own, given)

    def _run_pooled(
        self, checked: list[Pooled], params: list[PoolingParams], given: Mapping[str, Any]
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        self._load_adapters(given.get("lora_request"))
        settings = asked(self._session.limits, checked, None, given, samples=False)
        batch = Batch(
            self._session,
            checked,
            [NOTHING_SAMPLED] * len(checked),
            settings.settings,
            settings.lora_requests,
            params,
        )
        batch.run(self._progress if settings.progress is None else settings.progress)
        return [
            pooled_output(one, of_tokens=own.is_of_tokens)
            for one, own in zip(batch.completions, params, strict=True)
        ]


_FIELDS = ("truncate_prompt_tokens", "truncation_side", "dimensions", "normalize", "use_activation")


def _take_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters of a call out of `given`. None is what is not given."""
    fields = {name: given.pop(name) for name in _FIELDS if name in given}
    return {name: value for name, value in fields.items() if value is not None}


def _with_fields(params: PoolingParams | None, fields: dict[str, Any]) -> PoolingParams | None:
    """Return parameters with those of a call laid over them; `check_pooling` refuses other types."""
    if not fields or not isinstance(params, PoolingParams | None):
        return params
    return msgspec.structs.replace(params or PoolingParams(), **fields)


def _with(output: PoolingRequestOutput[PoolingOutput], outputs: Outputs) -> PoolingRequestOutput[Outputs]:
    return PoolingRequestOutput(
        output.request_id, outputs, output.prompt_token_ids, output.prompt, output.num_cached_tokens
    )


def _at(index: int, check: Callable[..., Pooled], *arguments: Any) -> Pooled:
    """Check one of the texts; a refusal names it by its index."""
    try:
        return check(*arguments)
    except BadRequest as error:
        raise BadRequest(f"prompts[{index}]: {error}", error.parameter) from None
