"""Methods of `LLM` and `Engine` for models that embed, classify and score, with the names that users of vLLM know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pageant.actors.client.pooling_calls import AnyPoolingParams, PoolingCalls, Text
from pageant.actors.client.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from pageant.actors.client.session import Session
from pageant.protocol.pooling import PoolingParams, PoolingTask

__all__ = ["AsyncPoolingMethods", "PoolingMethods"]


class PoolingMethods:
    """Methods of `LLM`, which wait for the results."""

    _session: Session
    _progress: bool

    def _load_adapters(self, given: Any) -> None:
        raise NotImplementedError

    def _calls(self, given: dict[str, Any]) -> PoolingCalls:
        self._load_adapters(given.get("lora_request"))
        return PoolingCalls(self._session)

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
        return self._calls(given).embed(prompts, params, prompt_name, given).run(self._progress)

    def encode(
        self,
        prompts: Text | Sequence[Text],
        params: AnyPoolingParams = None,
        *,
        pooling_task: PoolingTask | None = None,
        **given: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Returns what the model makes of texts as arrays; with `token_embed` or `token_classify`, of each token."""
        return self._calls(given).encode(prompts, params, pooling_task, given).run(self._progress)

    def classify(
        self, prompts: Text | Sequence[Text], params: AnyPoolingParams = None, **given: Any
    ) -> list[ClassificationRequestOutput]:
        """Classifies texts: each one's scores of the checkpoint's labels. See `embed`."""
        return self._calls(given).classify(prompts, params, given).run(self._progress)

    def reward(
        self, prompts: Text | Sequence[Text], params: AnyPoolingParams = None, **given: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Scores texts by a reward model: a score of the text, or of each token where the model has those."""
        return self._calls(given).reward(prompts, params, given).run(self._progress)

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
        return self._calls(given).score(data_1, data_2, params, given).run(self._progress)


class AsyncPoolingMethods:
    """Methods of `Engine`: those of `LLM`, awaited. A task that is cancelled aborts its texts."""

    _session: Session

    @property
    def _pooling_calls(self) -> PoolingCalls:
        return PoolingCalls(self._session)

    async def embed(
        self,
        prompts: Text | Sequence[Text],
        params: AnyPoolingParams = None,
        *,
        prompt_name: str | None = None,
        **given: Any,
    ) -> list[EmbeddingRequestOutput]:
        """Embed texts, batched together and with those of other calls; see `LLM.embed`."""
        return await self._pooling_calls.embed(prompts, params, prompt_name, given).run_async()

    async def encode(
        self,
        prompts: Text | Sequence[Text],
        params: AnyPoolingParams = None,
        *,
        pooling_task: PoolingTask | None = None,
        **given: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return what the model makes of texts as arrays; see `LLM.encode`."""
        return await self._pooling_calls.encode(prompts, params, pooling_task, given).run_async()

    async def classify(
        self, prompts: Text | Sequence[Text], params: AnyPoolingParams = None, **given: Any
    ) -> list[ClassificationRequestOutput]:
        """Classify texts; see `LLM.classify`."""
        return await self._pooling_calls.classify(prompts, params, given).run_async()

    async def reward(
        self, prompts: Text | Sequence[Text], params: AnyPoolingParams = None, **given: Any
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Score texts by a reward model; see `LLM.reward`."""
        return await self._pooling_calls.reward(prompts, params, given).run_async()

    async def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        params: PoolingParams | None = None,
        **given: Any,
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts; see `LLM.score`."""
        return await self._pooling_calls.score(data_1, data_2, params, given).run_async()
