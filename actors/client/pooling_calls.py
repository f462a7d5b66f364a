"""Calls that pool texts, checked before they run: `LLM` waits for them in its thread, `Engine` on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from pageant.actors.client.asking import as_prompts, asked, either
from pageant.actors.client.batching import Batch
from pageant.actors.client.lora import one_each
from pageant.actors.client.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    pooled_output,
    with_outputs,
)
from pageant.actors.client.session import Session
from pageant.actors.frontend.pairs import check_is_scorer, cosine, text_pairs
from pageant.actors.frontend.pooling import (
    NOTHING_SAMPLED,
    Pooled,
    check_pair,
    check_pooled_text,
    check_pooling,
    pooled_model,
)
from pageant.protocol.errors import BadRequest
from pageant.protocol.pooling import PoolingParams, PoolingTask

__all__ = ["AnyPoolingParams", "PoolingCall", "PoolingCalls", "Text"]

Text = str | Sequence[int]
AnyPoolingParams = PoolingParams | Sequence[PoolingParams] | None
Result = TypeVar("Result")
Found = list[PoolingRequestOutput[PoolingOutput]]


class PoolingCall(Generic[Result]):
    """A call whose texts and parameters are checked. It runs once, by `run` or by `run_async`."""

    def __init__(
        self, batch: Batch, params: list[PoolingParams], shown: bool | None, finish: Callable[[Found], Result]
    ) -> None:
        """Args:
        params: of each text.
        shown: whether the call asks for a bar; None leaves it to the engine's default.
        finish: makes the call's outputs of its texts' results.
        """
        self._batch, self._params, self._shown, self._finish = batch, params, shown, finish

    def run(self, shown: bool) -> Result:
        """Compute all texts; with a bar, if it is shown and the call does not say otherwise.

        Raises:
            PageantError: the first that went wrong; nothing of this call goes on.
        """
        self._batch.run(shown if self._shown is None else self._shown)
        return self._outputs()

    async def run_async(self) -> Result:
        """Compute all texts. A task that is cancelled aborts them.

        Raises:
            PageantError: the first that went wrong; nothing of this call goes on.
        """
        try:
            self._batch.submit()
            await asyncio.wrap_future(self._batch.done)
        except BaseException:
            self._batch.abort()
            raise
        return self._outputs()

    def _outputs(self) -> Result:
        return self._finish(
            [
                pooled_output(one, of_tokens=own.is_of_tokens)
                for one, own in zip(self._batch.completions, self._params, strict=True)
            ]
        )


class PoolingCalls:
    """Makes calls of a session. Each of them raises BadRequest, which names a text by its index."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def embed(
        self, prompts: Any, params: Any, prompt_name: str | None, given: dict[str, Any]
    ) -> PoolingCall[list[EmbeddingRequestOutput]]:
        """Embed texts; see `LLM.embed`."""
        return self._pool(prompts, params, "embed", prompt_name, given, _embeddings)

    def encode(
        self, prompts: Any, params: Any, task: PoolingTask | None, given: dict[str, Any]
    ) -> PoolingCall[Found]:
        """Make of texts what the model makes of them; see `LLM.encode`."""
        return self._pool(prompts, params, task, given.pop("prompt_name", None), given, list)

    def classify(
        self, prompts: Any, params: Any, given: dict[str, Any]
    ) -> PoolingCall[list[ClassificationRequestOutput]]:
        """Classify texts; see `LLM.classify`."""
        return self._pool(prompts, params, "classify", None, given, _classes)

    def reward(self, prompts: Any, params: Any, given: dict[str, Any]) -> PoolingCall[Found]:
        """Score texts by a reward model; see `LLM.reward`."""
        if pooled_model(self._session.limits).task != "classify":
            raise BadRequest("this model embeds texts and has no scores", "model")
        return self._pool(prompts, params, None, None, given, list)

    def score(
        self, data_1: Any, data_2: Any, params: PoolingParams | None, given: dict[str, Any]
    ) -> PoolingCall[list[ScoringRequestOutput]]:
        """Score pairs of texts; see `LLM.score`."""
        pairs = text_pairs(data_1, data_2)
        limits = self._session.limits
        if pooled_model(limits).task == "embed":
            return self._score_embeddings(pairs, params, given)
        check_is_scorer(limits)
        params = either(params, given.pop("pooling_params", None), "params", "pooling_params")
        own = check_pooling(_with_fields(params, _take_fields(given)), limits, "classify")
        checked = [_at(index, check_pair, *pair, limits) for index, pair in enumerate(pairs)]
        return self._call(checked, [own] * len(checked), given, _scores)

    def _score_embeddings(
        self, pairs: list[tuple[str, str]], params: PoolingParams | None, given: dict[str, Any]
    ) -> PoolingCall[list[ScoringRequestOutput]]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))

        def finish(found: Found) -> list[ScoringRequestOutput]:
            by_text = dict(zip(texts, found, strict=True))
            return [_cosine(by_text[first], by_text[second]) for first, second in pairs]

        return self._pool(texts, params, "embed", None, given, finish)

    def _pool(
        self,
        prompts: Any,
        params: Any,
        task: PoolingTask | None,
        prompt_name: str | None,
        given: dict[str, Any],
        finish: Callable[[Found], Result],
    ) -> PoolingCall[Result]:
        limits = self._session.limits
        many = as_prompts(prompts)
        params = either(params, given.pop("pooling_params", None), "params", "pooling_params")
        fields = _take_fields(given)
        each = one_each("params", params, len(many)) if isinstance(params, Sequence) else [params] * len(many)
        own = [check_pooling(_with_fields(one, fields), limits, task) for one in each]
        checked = [
            _at(index, check_pooled_text, text, limits, prompt_name) for index, text in enumerate(many)
        ]
        return self._call(checked, own, given, finish)

    def _call(
        self,
        checked: list[Pooled],
        params: list[PoolingParams],
        given: Mapping[str, Any],
        finish: Callable[[Found], Result],
    ) -> PoolingCall[Result]:
        settings = asked(self._session.limits, checked, None, given, samples=False)
        sampling = [NOTHING_SAMPLED] * len(checked)
        batch = Batch(self._session, checked, sampling, settings.settings, settings.lora_requests, params)
        return PoolingCall(batch, params, settings.progress, finish)


def _embeddings(found: Found) -> list[EmbeddingRequestOutput]:
    return [with_outputs(one, EmbeddingOutput(one.outputs.data.tolist())) for one in found]


def _classes(found: Found) -> list[ClassificationRequestOutput]:
    return [with_outputs(one, ClassificationOutput(one.outputs.data.tolist())) for one in found]


def _scores(found: Found) -> list[ScoringRequestOutput]:
    return [with_outputs(one, ScoringOutput(float(one.outputs.data[0]))) for one in found]


def _cosine(
    one: PoolingRequestOutput[PoolingOutput], other: PoolingRequestOutput[PoolingOutput]
) -> ScoringRequestOutput:
    ids = [*one.prompt_token_ids, *other.prompt_token_ids]
    score = ScoringOutput(cosine(one.outputs.data, other.outputs.data))
    return PoolingRequestOutput(f"{one.request_id}_{other.request_id}", score, ids)


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


def _at(index: int, check: Callable[..., Pooled], *arguments: Any) -> Pooled:
    """Check one of the texts; a refusal names it by its index."""
    try:
        return check(*arguments)
    except BadRequest as error:
        raise BadRequest(f"prompts[{index}]: {error}", error.parameter) from None
