"""Results of texts that are pooled: embeddings, classes and scores, with the names that users of vLLM know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pageant.actors.client.outputs import Completion
from pageant.actors.frontend.outputs import RequestFailed
from pageant.protocol.errors import RequestExpired

__all__ = [
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "PoolingOutput",
    "PoolingRequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "pooled_output",
    "with_outputs",
]

Outputs = TypeVar("Outputs")


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


def with_outputs(
    output: PoolingRequestOutput[PoolingOutput], outputs: Outputs
) -> PoolingRequestOutput[Outputs]:
    """Return a text with something else that was made of its result."""
    return PoolingRequestOutput(
        output.request_id, outputs, output.prompt_token_ids, output.prompt, output.num_cached_tokens
    )
