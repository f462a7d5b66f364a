"""Pairs of texts that are scored, by a model of pairs or by two embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.pooling import pooled_model
from pageant.actors.frontend.prompts import Limits
from pageant.protocol.errors import BadRequest

__all__ = ["check_is_scorer", "cosine", "text_pairs"]


def text_pairs(
    first: str | Sequence[str], second: str | Sequence[str], names: tuple[str, str] = ("data_1", "data_2")
) -> list[tuple[str, str]]:
    """Return pairs of texts: one with each of several, or as many with as many.

    Raises:
        BadRequest: there are none, or the numbers differ.
    """
    lefts = [first] if isinstance(first, str) else list(first)
    rights = [second] if isinstance(second, str) else list(second)
    for name, texts in zip(names, (lefts, rights), strict=True):
        if not texts:
            raise BadRequest(f"{name} is empty; expected at least one text", name)
    if len(lefts) not in (1, len(rights)):
        raise BadRequest(
            f"{names[0]} has {len(lefts)} texts, and {names[1]} has {len(rights)}; expected one, or as many",
            names[0],
        )
    lefts = lefts * len(rights) if len(lefts) == 1 else lefts
    return list(zip(lefts, rights, strict=True))


def check_is_scorer(limits: Limits) -> None:
    """Refuse a model of several labels, of which none is the score of a pair."""
    model = pooled_model(limits)
    if model.task == "classify" and (len(model.labels) != 1 or model.of_tokens):
        raise BadRequest(
            f"this model has {len(model.labels)} labels; expected one, which is a pair's score", "model"
        )


def cosine(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> float:
    """Return the cosine of two vectors [size]; 0 where one of them is zero."""
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length else 0.0
