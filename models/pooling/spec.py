"""Pooling described by data: which of a text's hidden states are read, and the layers that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pageant.models.tensor_files import TensorInfo

__all__ = ["Activation", "Affine", "Normalise", "PoolKind", "PoolingSpec", "Scores", "Standardise", "Step"]

PoolKind = Literal["cls", "mean", "last", "all"]
"""The first hidden state of a text, the mean of all, the last, or each by itself."""

Activation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]
Scores = Literal["identity", "sigmoid", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """activation(x @ weight.T + bias)."""

    weight: TensorInfo
    """[out, in]; with `rows`, [vocabulary, in]."""
    bias: TensorInfo | None = None
    activation: Activation = "identity"
    rows: tuple[int, ...] | None = None
    """The rows of the weight that are used; None is all."""
    first_less_second: bool = False
    """Whether the one row that is used is the difference of the two `rows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standardise:
    """A layer norm."""

    weight: TensorInfo
    bias: TensorInfo | None
    eps: float


@dataclass(frozen=True, slots=True)
class Normalise:
    """Division by the Euclidean length."""


Step = Affine | Standardise | Normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSpec:
    """Pooling of a model: how a text becomes an embedding, or a score for each label."""

    task: Literal["embed", "classify"]
    pool: PoolKind
    size: int
    """Width of the result."""
    steps: tuple[Step, ...] = ()
    """What follows pooling, in order."""
    normalises: bool = False
    """Whether embeddings are normalised at last, where a request does not say."""
    dimensions: tuple[int, ...] | None = None
    """The widths that an embedding may be cut to (Matryoshka); () is any, None is none."""
    labels: tuple[str, ...] = ()
    """What the scores are of."""
    scores: Scores = "identity"
    """What makes scores of logits, where a request does not say."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What texts of some kinds begin with, by the kinds' names."""
    default_prompt: str | None = None
    """The kind of texts of which nothing is said."""
    lowercases: bool = False
    """Whether texts are lowercased before they are tokenized."""
    max_length: int | None = None
    """The tokens of the longest text that the model was made for, where it says."""
