"""Requests whose hidden states are pooled into an embedding or scores, instead of tokens that are generated.

frontend ──Submit──▶ scheduler ──NewSequence──▶ executor/* ──StepResult──▶ scheduler ──Finished──▶ frontend

Such a request samples nothing. Its result comes with the step that computes the last of its tokens, and ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from pageant.protocol.arrays import Float32Matrix, Float32Vector, Int32Vector, int32
from pageant.protocol.checks import TOKEN_ID_MAX, check_integer, to_builtin
from pageant.protocol.errors import BadRequest
from pageant.protocol.hearing import Alignment
from pageant.protocol.parameters import Parameters

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
"""What is asked for: one vector of a text, or one of each of its tokens."""

TASKS: tuple[PoolingTask, ...] = ("embed", "classify", "token_embed", "token_classify")
DIMENSIONS_MAX = 65_536


class PoolingParams(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of what is made of a text's hidden states.

    Attributes:
        task: what is asked for; None is what the model does.
        dimensions: cut embeddings to this width, where the model was trained for it; None leaves them whole.
        normalize: divide embeddings by their length; None is as the model has it.
        use_activation: make scores of a classifier's logits; None is true.
        truncate_prompt_tokens: keep this many of the text's tokens, special ones included; -1 is as many as the model
            takes.
        truncation_side: the end that is cut off: right (or None) keeps the first tokens, left the last.
        second_segment: the position of the first token of a pair's second text, for models that tell the two apart. The
            frontend sets it.
        reads_all: the hidden states of all tokens are read, so that none may be taken from the prefix cache. The
            frontend sets it.
        alignment: times of the tokens within a sound are asked for instead, in rows of its encoder. The frontend sets
            it.

    Raises:
        BadRequest: a value is out of range; names the parameter, what was found and what is expected.
    """

    task: PoolingTask | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    second_segment: int | None = None
    reads_all: bool = False
    alignment: Alignment | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if (plain := to_builtin(value)) is not value:
                msgspec.structs.force_setattr(self, name, plain)
        if self.task not in (None, *TASKS):
            raise BadRequest(f"task is {self.task!r:.80}; expected one of {', '.join(TASKS)}", "task")
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions, 1, DIMENSIONS_MAX)
        for name in ("normalize", "use_activation"):
            if not isinstance(getattr(self, name), bool | None):
                raise BadRequest(f"{name} is {getattr(self, name)!r:.80}; expected true or false", name)
        if self.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, TOKEN_ID_MAX)
            if not self.truncate_prompt_tokens:
                raise BadRequest(
                    "truncate_prompt_tokens is 0; expected -1, or at least 1", "truncate_prompt_tokens"
                )
        if self.truncation_side not in (None, "left", "right"):
            raise BadRequest(
                f"truncation_side is {self.truncation_side!r:.80}; expected 'left' or 'right'",
                "truncation_side",
            )

    @property
    def is_of_tokens(self) -> bool:
        """Tell whether a vector of each token is asked for."""
        return self.task in ("token_embed", "token_classify")

    @property
    def activates(self) -> bool | None:
        """Tell whether the last step is asked for or declined; None is as the model has it."""
        return self.use_activation if self.normalize is None else self.normalize


class PooledModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that pools, as its frontends know it.

    Attributes:
        task: it embeds texts, or classifies them.
        size: width of its vectors.
        dimensions: the widths that embeddings may be cut to; () is any, None is none.
        labels: what its scores are of.
        reads_all: the hidden states of all tokens are read.
        of_tokens: it has a vector for each token, and none for a text.
        prompts: what texts of some kinds begin with, by the kinds' names.
        default_prompt: the kind of texts of which nothing is said.
        lowercases: texts are lowercased.
        has_token_types: it tells the two texts of a pair apart.
        has_pair_template: the chat template renders pairs, as turns of a `query` and a `document`.
    """

    task: Literal["embed", "classify"]
    size: int
    dimensions: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    reads_all: bool = False
    of_tokens: bool = False
    prompts: dict[str, str] = msgspec.field(default_factory=dict)
    default_prompt: str | None = None
    lowercases: bool = False
    has_token_types: bool = False
    has_pair_template: bool = False


class PooledRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of P requests, by columns."""

    places: Int32Vector
    """int32 [P]: which of the step's sampling entries each is in place of."""
    heights: Int32Vector
    """int32 [P]: the number of vectors of each: 1, or that of its tokens."""
    widths: Int32Vector
    """int32 [P]: the width of each one's vectors."""
    values: Float32Vector
    """float32 [sum of heights * widths]: the vectors, request by request."""

    def split(self) -> dict[int, Float32Matrix]:
        """Return each request's vectors, float32 [height, width], by place; copies."""
        ends = np.cumsum(self.heights.astype(np.int64) * self.widths).tolist()
        shapes = zip(self.places.tolist(), self.heights.tolist(), self.widths.tolist(), ends, strict=True)
        return {
            place: self.values[end - height * width : end].reshape(height, width).copy()
            for place, height, width, end in shapes
        }


def join_pooled(results: Iterable[tuple[int, Float32Matrix]]) -> PooledRows | None:
    """Return the columns of results, float32 [height, width] each, that come with their places; None of none."""
    some = list(results)
    if not some:
        return None
    return PooledRows(
        places=int32([place for place, _ in some]),
        heights=int32([matrix.shape[0] for _, matrix in some]),
        widths=int32([matrix.shape[1] for _, matrix in some]),
        values=np.concatenate([matrix.reshape(-1) for _, matrix in some]).astype(np.float32, copy=False),
    )
