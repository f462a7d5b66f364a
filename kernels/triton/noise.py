"""The noise of sampling (see `pageant.kernels.sampling`), and the token that wins by it.

The noise is defined in float64, which costs dearly on many devices. So tokens are first compared by estimates in
float32, and exactly only those that could be the first.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["best_of", "words_of_part", "words_of_tokens"]


@triton.jit
def words_of_part(seed, sample, position, part, PART: tl.constexpr):
    """Return the random words [PART] of the tokens of a part of the vocabulary: four come at once."""
    quad = (part * (PART // 4) + tl.arange(0, PART // 4)).to(tl.uint32)
    word_0, word_1, word_2, word_3 = _words_of_quads(seed, sample, position, quad)
    return tl.reshape(tl.join(tl.join(word_0, word_2), tl.join(word_1, word_3)), [PART])


@triton.jit
def words_of_tokens(seed, sample, position, token):
    """Return the random words of any tokens, in the shape of `token`."""
    word_0, word_1, word_2, word_3 = _words_of_quads(seed, sample, position, (token // 4).to(tl.uint32))
    place = token % 4
    return tl.where(place < 2, tl.where(place == 0, word_0, word_1), tl.where(place == 2, word_2, word_3))


@triton.jit
def _words_of_quads(seed, sample, position, quad):
    nothing = quad * 0
    return tl.philox(
        seed,
        quad,
        nothing + (position & 0xFFFFFFFF).to(tl.uint32),
        nothing + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        nothing + sample.to(tl.uint32),
    )


@triton.jit
def best_of(words, distance, kept, token, line, top, temperature, vocab_size):
    """Return the largest of noise - distance, exactly, and its token; (-infinity, vocab_size) if none is kept.

    `distance` may be off by 1e-5: that of a token that could win is computed exactly from the logits `line`.
    """
    MARGIN: tl.constexpr = 1.001  # more than estimates can be wrong by
    # exp(distance - noise), which is least for the winner, takes one logarithm, where the noise takes two. A distance
    # for which it is infinite is beyond that of any winner: noise is from -3.2 to 23, and the top's distance is 0.
    estimates = _exponential(words) * tl.exp(distance)
    estimates = tl.where(kept & (distance < 80.0), estimates, float("inf"))
    leader = tl.min(estimates)
    last = leader * MARGIN
    score = tl.full((), float("-inf"), dtype=tl.float32)
    winner = tl.full((), 0, dtype=tl.int32) + vocab_size
    while (leader < float("inf")) & (leader <= last):
        candidate = tl.min(tl.where(estimates == leader, token, vocab_size))
        chosen = token == candidate
        word = tl.max(tl.where(chosen, words, 0))
        exact = _noise(word) - tl.abs(tl.div_rn(tl.load(line + candidate) - top, temperature))
        better = (exact > score) | ((exact == score) & (candidate < winner))
        winner = tl.where(better, candidate, winner)
        score = tl.maximum(score, exact)
        estimates = tl.where(chosen, float("inf"), estimates)
        leader = tl.min(estimates)
    return score, winner


@triton.jit
def _exponential(words):
    """-log(u), within 2e-5 of it, in float32: near u = 1 the logarithm is a series of 1 - u."""
    missing = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 1 - u
    series = missing * (1.0 + missing * (0.5 + missing * 0.3333333333333333))
    uniform = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # For missing >= 2**-6, u is rounded to 2**-25 at most, against a logarithm of at least 2**-6.
    return tl.where(missing < 0.015625, series, -tl.log(tl.minimum(uniform, 0.99609375)))


@triton.jit
def _noise(word):
    """-log(-log(u)) of one word, in float64, rounded once."""
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)
