"""Tokenizers with more tokens than their model can draw."""

from __future__ import annotations

import json
from typing import Any


def within(tokenizer: str, vocab_size: int) -> str:
    """Return a `tokenizer.json` without the tokens that a model of `vocab_size` tokens cannot draw.

    Fine-tunes add a padding token that the model has no row for, and some models share a larger family's tokenizer.
    A compiler of grammars takes no such tokens.
    """
    data = json.loads(tokenizer)
    model, added = data["model"], data.get("added_tokens") or []
    vocabulary: dict[str, int] | list[Any] = model["vocab"]
    # A unigram model's ids are their places.
    ids = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
    if max((*ids, *(one["id"] for one in added)), default=-1) < vocab_size:
        return tokenizer
    data["added_tokens"] = [one for one in added if one["id"] < vocab_size]
    if isinstance(vocabulary, list):
        model["vocab"] = vocabulary[:vocab_size]
    else:
        kept = {token: number for token, number in vocabulary.items() if number < vocab_size}
        model["vocab"] = kept
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if _is_within(pair, kept)]
    return json.dumps(data)


def _is_within(merge: str | list[str], kept: dict[str, int]) -> bool:
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first in kept and second in kept and first + second in kept
