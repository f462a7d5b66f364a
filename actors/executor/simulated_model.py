"""The model of a simulation: what follows is a known function of what came before, of seed and of position.

A token leaves a number in the slot of its position, and what is drawn depends on the sum of all slots that a sequence
sees, as attention's output does. From that sum, the seed and the position each token gets a score, between 0 and 16 in
steps of 1/256; what a request has done to logits is done to those, and the highest one is drawn. The scores of 64
tokens are enough to say, and those of all where a grammar decides which may be said.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.batch.inputs import SamplingColumns
from pageant.actors.executor.batch.shaping import Shaping

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

FIRST_TOKEN, NUM_TOKENS = 259, 64  # what is drawn without a grammar: words that end in no half of a character
SCORE_BITS, SCORE_STEP = 12, 256.0
LOGPROBS = 4096  # different ones
POOLED_WIDTH = 4


def mix(*values: npt.NDArray[np.generic]) -> UInt64:
    """64 bits that depend on all bits of all values (after SplitMix64)."""
    mixed = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for value in values:
            mixed = (mixed ^ value.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(27)
    return mixed


def written(token_ids: Int64, positions: Int64) -> UInt64:
    """Return what tokens leave in the slots of their positions."""
    return mix(token_ids, positions)


def adapted(values: UInt64, adapter: str) -> UInt64:
    """Return what tokens leave that are computed with an adapter."""
    return mix(values, np.array([zlib.crc32(adapter.encode())]))


def noise_of(seen: UInt64, columns: SamplingColumns, places: Int64, ahead: int = 0) -> UInt64:
    """Return the noise of draws after slots whose sums are `seen`, for some of a step's rows, so many positions on.

    Greedy rows have no seed.
    """
    random = columns.temperature[places] > 0
    seeds, samples = np.where(random, columns.seed[places], 0), np.where(random, columns.sample[places], 0)
    return mix(seen, seeds, samples, columns.position[places] + ahead)


def scores_of(noise: UInt64, token_ids: UInt64) -> Float32:
    """Each token's score: [N, V], for noise [N] and tokens [V]."""
    with np.errstate(over="ignore"):
        found = noise[:, None] * (np.uint64(2) * token_ids + np.uint64(1))
    return (found >> np.uint64(64 - SCORE_BITS)).astype(np.float32) / np.float32(SCORE_STEP)


def logprob_of(seen: UInt64, token_ids: Int64) -> Float32:
    """Return the log-probabilities of tokens after slots whose sums are `seen`."""
    found: Float32 = (mix(seen, token_ids) % np.uint64(LOGPROBS)).astype(np.float32)
    return -found / np.float32(256)


def pooled(seen: UInt64, lengths: Int64) -> Float32:
    """Return embeddings [N, POOLED_WIDTH] of texts with sums of slots `seen` [N] and numbers of tokens [N]."""
    found = mix(seen[:, None], lengths[:, None], np.arange(POOLED_WIDTH)[None])
    return (found % np.uint64(LOGPROBS)).astype(np.float32)


def shaped_places(shaping: Shaping) -> Int64:
    """The drawing rows whose scores are changed."""
    entries = (shaping.allowed, shaping.forbidden, shaping.bias, shaping.counts)
    return np.unique(np.concatenate([entry.rows for entry in entries]))


def shape_scores(scores: Float32, places: Int64, shaping: Shaping) -> None:
    """Mutates the scores [N, V] of the drawing rows `places`, in the order of `executor.shaping`."""

    def at(entries_rows: Int64) -> Int64:
        return np.searchsorted(places, entries_rows).astype(np.int64)

    allowed, forbidden, bias, counts = shaping.allowed, shaping.forbidden, shaping.bias, shaping.counts
    if len(allowed):
        kept = scores[at(allowed.rows), allowed.tokens]
        scores[at(np.unique(allowed.rows))] = -np.inf
        scores[at(allowed.rows), allowed.tokens] = kept
    scores[at(forbidden.rows), forbidden.tokens] = -np.inf
    if len(bias):
        scores[at(bias.rows), bias.tokens] += bias.values
    if len(counts):
        repetition, frequency, presence = shaping.penalties[counts.rows].T
        found = scores[at(counts.rows), counts.tokens]
        found = np.where(found > 0, found / repetition, found * repetition)
        found -= frequency * counts.values + presence * (counts.values > 0)
        scores[at(counts.rows), counts.tokens] = found
