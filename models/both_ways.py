"""Attention that looks both ways, by the kernels of attention that looks back.

A token attends over the entries up to its position in the batch, and with a window over so many up to that one. Where
positions in the batch are those of the last entries that tokens see, tokens see entries that follow them. Rotary
embeddings have positions of their own and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from pageant.kernels.base import AttentionBatch, KVCache, Span
from pageant.models.decoder import Wanted

__all__ = ["look_both_ways", "look_within", "wanted_both_ways"]


def look_both_ways(
    places: Iterable[tuple[AttentionBatch, KVCache]], windows: Sequence[int | None]
) -> Iterator[tuple[AttentionBatch, KVCache]]:
    """Yield each layer's step and cache, for a step that holds whole texts.

    Args:
        places: each layer's step, with positions in the text, and its cache.
        windows: each layer's window, odd, with the token in its middle; None is the whole text.
    """
    made: dict[tuple[int, int | None], AttentionBatch] = {}
    for (batch, cache), window in zip(places, windows, strict=True):
        key = id(batch), window
        if key not in made:
            made[key] = _both_ways(batch, window)
        yield made[key], cache


def look_within(
    spans: Sequence[Span], places: Iterable[tuple[AttentionBatch, KVCache]], windows: Sequence[int | None]
) -> Iterator[tuple[AttentionBatch, KVCache]]:
    """Yield each layer's step and cache, for a step of which some tokens see all of their span as well.

    Args:
        places: each layer's step, with positions in the text, and its cache.
        windows: each layer's window, with the token at its end; None is all that is before.
    """
    made: dict[tuple[int, int | None], AttentionBatch] = {}
    for (batch, cache), window in zip(places, windows, strict=True):
        key = id(batch), window
        if key not in made:
            made[key] = _within(batch, spans, window)
        yield made[key], cache


def _within(batch: AttentionBatch, spans: Sequence[Span], window: int | None) -> AttentionBatch:
    """Return a layer's step. Kernels have one position a token, so that they do spans that no window cuts short."""
    last, cut = batch.positions.clone(), []
    for span in spans:
        if window is None or span.end <= window:
            last[span.first : span.last] = span.end - 1
        else:
            cut.append(span)
    return replace(batch, positions=last, spans=tuple(cut), derived={}, others=())


def wanted_both_ways(wanted: Wanted | None, window: int | None) -> Wanted | None:
    """Return the tokens that the last layer computes, which look both ways within its window."""
    return None if wanted is None else replace(wanted, batch=_both_ways(wanted.batch, window))


def _both_ways(batch: AttentionBatch, window: int | None) -> AttentionBatch:
    if window is None:
        last = torch.full_like(batch.positions, batch.max_context_length - 1)
    else:
        last = batch.positions + window // 2
    return replace(batch, positions=last, derived={}, others=())
