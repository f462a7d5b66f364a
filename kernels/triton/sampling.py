"""Drawing tokens: the reference's tokens exactly, without a sort.

Three launches. `find_limits` finds, for each row that draws, how far below its largest logit a token may be. It
searches for the k-th place and for the nucleus by bisection of the distance's bits. Each step counts and weighs a row
once, until one token at most is undecided. Sorting was turned down: it moves the row several
times, and its order is not needed. `draw` goes over the vocabulary in parts. The noise is defined in float64,
which costs dearly on many devices, so each token's is first estimated in float32, and computed exactly for
those only that could be the largest. `choose` takes the best of the parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import SamplingTensors, TokenMasks
from pageant.kernels.reference.sampling import mask_logits
from pageant.kernels.sampling import GREEDY_TEMPERATURE
from pageant.kernels.triton.launching import cdiv, interpreted, next_power_of_2

__all__ = ["choose", "draw", "find_limits", "sample"]

_PART = 4096  # tokens of the vocabulary that a program draws from
_TILE = 4096  # tokens that a search reads at a time


def sample(logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
    """See `Kernels.sample`."""
    if masks is not None:
        mask_logits(logits, *masks)
    rows, vocab_size = logits.shape
    device = logits.device
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    part = 256 if interpreted(device) else _PART
    parts = cdiv(vocab_size, part)
    tops, limits = torch.empty((2, rows), dtype=torch.float32, device=device).unbind()
    best = torch.empty((rows, parts), dtype=torch.float32, device=device)
    found = torch.empty((rows, parts), dtype=torch.int32, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    find_limits[(rows,)](
        logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        tops,
        limits,
        logits.stride(0),
        vocab_size,
        GREEDY=GREEDY_TEMPERATURE,
        TILE=256 if interpreted(device) else _TILE,
        num_warps=16,
    )
    draw[(rows, parts)](
        logits,
        params.temperature,
        params.seed,
        params.sample,
        params.position,
        tops,
        limits,
        best,
        found,
        logits.stride(0),
        vocab_size,
        parts,
        GREEDY=GREEDY_TEMPERATURE,
        PART=part,
        num_warps=8,
    )
    choose[(rows,)](best, found, tokens, parts, vocab_size, PARTS=next_power_of_2(parts), num_warps=1)
    return tokens


@triton.jit(do_not_specialize=["vocab_size"])
def find_limits(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    tops,
    limits,
    stride,
    vocab_size,
    GREEDY: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (row). A token is kept whose distance, (top - logit) / temperature, is at most the limit."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    if temperature < GREEDY:
        return
    line = logits + row.to(tl.int64) * stride
    largest = tl.full([TILE], float("-inf"), dtype=tl.float32)
    for start in range(0, vocab_size, TILE):
        token = start + tl.arange(0, TILE)
        largest = tl.maximum(largest, tl.load(line + token, mask=token < vocab_size, other=float("-inf")))
    top = tl.max(largest)
    tl.store(tops + row, top)
    limit = tl.full((), float("inf"), dtype=tl.float32)
    min_p = tl.load(min_ps + row)
    if min_p > 0:
        limit = -tl.log(min_p)
    top_k = tl.load(top_ks + row)
    if (top_k > 0) & (top_k < vocab_size):
        bound = _search(line, top, temperature, float("inf"), top_k.to(tl.float32), vocab_size, False, TILE)
        limit = tl.minimum(limit, bound)
    top_p = tl.load(top_ps + row)
    if top_p < 1:
        _, mass = _measure(line, top, temperature, limit, vocab_size, True, TILE)
        limit = _search(line, top, temperature, limit, top_p * mass, vocab_size, True, TILE)
    tl.store(limits + row, limit)


@triton.jit
def _distance(line, token, top, temperature, vocab_size):
    """Return tokens' distances from the top: at least 0, infinite past the vocabulary, rounded as in the reference."""
    logit = tl.load(line + token, mask=token < vocab_size, other=float("-inf"))
    return tl.abs(tl.div_rn(logit - top, temperature))


@triton.jit
def _measure(line, top, temperature, limit, vocab_size, MASS: tl.constexpr, TILE: tl.constexpr):
    """Return (the number of tokens within the limit, their weight: the number again, or the mass)."""
    counts = tl.zeros([TILE], dtype=tl.int32)
    masses = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, vocab_size, TILE):
        token = start + tl.arange(0, TILE)
        distance = _distance(line, token, top, temperature, vocab_size)
        within = (distance <= limit) & (token < vocab_size)
        counts += within.to(tl.int32)
        if MASS:
            masses += tl.where(within, tl.exp(-distance), 0.0)
    count = tl.sum(counts)
    weight = tl.sum(masses) if MASS else count.to(tl.float32)
    return count, weight


@triton.jit
def _search(line, top, temperature, limit, needed, vocab_size, MASS: tl.constexpr, TILE: tl.constexpr):
    """The least distance, or one that keeps the same tokens, within which the weight is `needed`; at most
    `limit`. Distances are not negative, so their bits are in order."""
    infinite = tl.full((), float("inf"), dtype=tl.float32)
    reaching = tl.minimum(infinite, limit).to(tl.int32, bitcast=True)  # enough is known to be within it
    short = reaching * 0 - 1  # too little is
    undecided = reaching * 0 + vocab_size + 1
    within = undecided
    while (reaching - short > 1) & (undecided > 1):
        middle = short + (reaching - short) // 2
        count, weight = _measure(
            line, top, temperature, middle.to(tl.float32, bitcast=True), vocab_size, MASS, TILE
        )
        if weight >= needed:
            undecided -= within - count
            within = count
            reaching = middle
        else:
            undecided = within - count
            short = middle
    return reaching.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["vocab_size", "parts"])
def draw(
    logits,
    temperatures,
    seeds,
    samples,
    positions,
    tops,
    limits,
    best,
    found,
    stride,
    vocab_size,
    parts,
    GREEDY: tl.constexpr,
    PART: tl.constexpr,
):
    """Program (row, part of the vocabulary): the best score there, and the lowest token that has it."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    line = logits + row.to(tl.int64) * stride
    temperature = tl.load(temperatures + row)
    token = part * PART + tl.arange(0, PART)
    if temperature < GREEDY:
        scores = tl.load(line + token, mask=token < vocab_size, other=float("-inf"))
        score = tl.max(scores)
        winner = tl.min(tl.where(scores == score, token, vocab_size))
    else:
        distance = _distance(line, token, tl.load(tops + row), temperature, vocab_size)
        words = _noise_words(
            tl.load(seeds + row), tl.load(samples + row), tl.load(positions + row), part, PART
        )
        kept = (distance <= tl.load(limits + row)) & (token < vocab_size)
        score, winner = _best_of(distance, words, kept, token, vocab_size, PART)
    tl.store(best + row * parts + part, score)
    tl.store(found + row * parts + part, winner)


@triton.jit
def _noise_words(seed, sample, position, part, PART: tl.constexpr):
    """The random words [PART] of a part's tokens: see `pageant.kernels.sampling`."""
    quad = (part * (PART // 4) + tl.arange(0, PART // 4)).to(tl.uint32)
    nothing = quad * 0
    word_0, word_1, word_2, word_3 = tl.philox(
        seed,
        quad,
        nothing + (position & 0xFFFFFFFF).to(tl.uint32),
        nothing + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        nothing + sample.to(tl.uint32),
    )
    return tl.reshape(tl.join(tl.join(word_0, word_2), tl.join(word_1, word_3)), [PART])


@triton.jit
def _best_of(distance, words, kept, token, vocab_size, PART: tl.constexpr):
    """The largest of noise - distance, exactly, and its token."""
    MARGIN: tl.constexpr = 1e-3  # more than an estimate can be wrong by, twice
    estimates = tl.where(kept, _estimated_noise(words) - distance, float("-inf"))
    leader = tl.max(estimates)
    score = tl.full((), float("-inf"), dtype=tl.float32)
    winner = tl.full((), 0, dtype=tl.int32) + vocab_size
    while (leader > float("-inf")) & (leader >= score - MARGIN):
        candidate = tl.min(tl.where(estimates == leader, token, vocab_size))
        chosen = token == candidate
        word = tl.sum(tl.where(chosen, words.to(tl.int64), 0))
        # The minus of the distance first: that is how the reference has it.
        exact = -tl.sum(tl.where(chosen, distance, 0.0)) + _noise(word)
        better = (exact > score) | ((exact == score) & (candidate < winner))
        winner = tl.where(better, candidate, winner)
        score = tl.maximum(score, exact)
        estimates = tl.where(chosen, float("-inf"), estimates)
        leader = tl.max(estimates)
    return score, winner


@triton.jit
def _estimated_noise(words):
    """-log(-log(u)), within 2e-4, in float32: near u = 1 the logarithm is a series of 1 - u."""
    missing = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 1 - u
    series = missing * (1.0 + missing * (0.5 + missing * 0.3333333333333333))
    uniform = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # For missing >= 2**-6, u is rounded to 2**-25 at most, against a logarithm of at least 2**-6.
    return -tl.log(tl.where(missing < 0.015625, series, -tl.log(tl.minimum(uniform, 0.99609375))))


@triton.jit
def _noise(word):
    """-log(-log(u)) of one word, in float64, rounded once."""
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit(do_not_specialize=["parts", "vocab_size"])
def choose(best, found, tokens, parts, vocab_size, PARTS: tl.constexpr):
    """Program (row): the token of the best part, the lowest of equals."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    scores = tl.load(best + row * parts + part, mask=part < parts, other=float("-inf"))
    winners = tl.load(found + row * parts + part, mask=part < parts, other=0)
    winner = tl.min(tl.where((scores == tl.max(scores)) & (part < parts), winners, vocab_size))
    # A row of nothing but minus infinities draws whatever there is.
    tl.store(tokens + row, tl.minimum(winner, vocab_size - 1).to(tl.int64))
