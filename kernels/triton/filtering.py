"""The filters of sampling, without a sort: how far below its largest logit a row's token may be.

A token's distance is (largest logit - its logit) / temperature. Each filter is a bound on it, which a bisection of the
distance's bits finds. That would be some thirty readings of a row by one program, so it is done for few tokens:
the k-th largest of the segments' largest logits is at most the k-th largest logit. `narrow` finds two such distances
for a row: a near one for top_k and small nuclei, and a far one for large nuclei. `collect` copies the tokens within
each, in parts of the vocabulary, and adds up the mass of all. `settle` finds the bound among them, in registers, and
draws where the near ones were enough. Where neither are, as among thousands of ties, it reads the row again and again.

Masses are integers here: the order in which tokens were collected, which is any, changes no sum of theirs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pageant.kernels.triton.noise import best_of, words_of_tokens

__all__ = ["collect", "distance_of", "limit_by_min_p", "narrow", "settle", "top_of"]


@triton.jit
def distance_of(line, token, there, top, temperature):
    """Return tokens' distances: at least 0, infinite where none is, rounded as in the reference."""
    logit = tl.load(line + token, mask=there, other=float("-inf"))
    return tl.abs(tl.div_rn(logit - top, temperature))


@triton.jit
def _is_searched(top_k, top_p, vocab_size):
    return ((top_k > 0) & (top_k < vocab_size)) | (top_p < 1)


@triton.jit
def top_of(part_tops, parts, PARTS: tl.constexpr):
    """Return a row's largest logit, given that of each of its parts."""
    every = tl.arange(0, PARTS)
    return tl.max(tl.load(part_tops + every, mask=every < parts, other=float("-inf")))


@triton.jit
def limit_by_min_p(min_p):
    """Return the distance of the last token that min_p keeps."""
    limit = tl.full((), float("inf"), dtype=tl.float32)
    if min_p > 0:
        limit = -tl.log(min_p)
    return limit


@triton.jit
def narrow(
    temperatures,
    top_ks,
    top_ps,
    peaks,
    floors,
    counters,
    vocab_size,
    segments,
    GREEDY: tl.constexpr,
    WANTED: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """Program (row): two distances, of which -1 stands for none; it clears the counters of `collect`."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    if (temperature < GREEDY) | (_is_searched(top_k, top_p, vocab_size) == 0):
        return
    place = tl.arange(0, SEGMENTS)
    peak = tl.load(peaks + row.to(tl.int64) * segments + place, mask=place < segments, other=float("-inf"))
    distance = tl.abs(tl.div_rn(peak - tl.max(peak), temperature))
    there = tl.sum((peak > float("-inf")).to(tl.int32))
    by_count = (top_k > 0) & (top_k < vocab_size)
    wanted = tl.where(by_count, top_k, tl.minimum(WANTED, there // 2))
    near = tl.full((), -1.0, dtype=tl.float32)
    far = near
    if (wanted <= there) & (wanted <= 2 * WANTED):
        near = _distance_of_many(distance, there, wanted, wanted // 8)
    if (by_count == 0) | (near < 0):
        far = 1.03 * _distance_of_many(distance, there, there - there // 1024, 0)
        if by_count == 0:
            # All tokens beyond this weigh less than what the nucleus may leave out: there is no need of those.
            least = (1.0 - top_p) * tl.sum(tl.exp(-distance))
            far = tl.minimum(far, tl.log(vocab_size / least) + 0.01)
    tl.store(floors + 2 * row, near)
    tl.store(floors + 2 * row + 1, far)
    tl.store(counters + 2 * row, 0)
    tl.store(counters + 2 * row + 1, 0)


@triton.jit
def _distance_of_many(distance, there, wanted, more):
    """Return a distance within which at least `wanted` of `there` are, and as far as it can at most `more` others."""
    high = tl.full((), float("inf"), dtype=tl.float32).to(tl.int32, bitcast=True)
    low = high * 0 - 1
    within = there
    while (high - low > 1) & (within > wanted + more):
        middle = low + (high - low) // 2
        count = tl.sum((distance <= middle.to(tl.float32, bitcast=True)).to(tl.int32))
        if count >= wanted:
            within = count
            high = middle
        else:
            low = middle
    return high.to(tl.float32, bitcast=True)


@triton.jit
def collect(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    part_tops,
    masses,
    floors,
    counters,
    near_tokens,
    far_tokens,
    stride,
    vocab_size,
    parts,
    GREEDY: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
):
    """Program (row, part of the vocabulary): the tokens within a row's two distances, and the part's mass."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if (temperature < GREEDY) | (_is_searched(tl.load(top_ks + row), tl.load(top_ps + row), vocab_size) == 0):
        return
    top = top_of(part_tops + row * parts, parts, PARTS)
    token = part * PART + tl.arange(0, PART)
    there = token < vocab_size
    distance = distance_of(logits + row.to(tl.int64) * stride, token, there, top, temperature)
    limit = limit_by_min_p(tl.load(min_ps + row))
    tl.store(masses + row * parts + part, tl.sum(_masses(distance, there & (distance <= limit))))
    near = tl.load(floors + 2 * row)
    far = tl.load(floors + 2 * row + 1)
    line = row.to(tl.int64)
    _keep(token, there & (distance <= near), counters + 2 * row, near_tokens + line * NEAR, NEAR)
    if far >= 0:
        _keep(token, there & (distance <= far), counters + 2 * row + 1, far_tokens + line * FAR, FAR)


@triton.jit
def _masses(distance, within):
    """exp(-distance) of those within, as int64 in units of 2**-40."""
    return tl.where(within, tl.exp(-distance) * 1099511627776.0, 0.0).to(tl.int64)


@triton.jit
def _keep(token, within, counter, into, SIZE: tl.constexpr):
    """Append the tokens within, as far as there is room, and count all."""
    kept = within.to(tl.int32)
    count = tl.sum(kept)
    if count > 0:
        place = tl.atomic_add(counter, count) + tl.cumsum(kept, 0) - 1
        tl.store(into + place, token, mask=within & (place < SIZE))


@triton.jit
def settle(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    samples,
    positions,
    part_tops,
    masses,
    counters,
    near_tokens,
    far_tokens,
    limits,
    settled,
    tokens,
    stride,
    vocab_size,
    parts,
    GREEDY: tl.constexpr,
    PARTS: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (row): its limit; its token too where the near tokens are all that it may be."""
    row = tl.program_id(0)
    tl.store(settled + row, 0)
    temperature = tl.load(temperatures + row)
    if temperature < GREEDY:
        return
    line = logits + row.to(tl.int64) * stride
    limit = limit_by_min_p(tl.load(min_ps + row))
    tl.store(limits + row, limit)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    if _is_searched(top_k, top_p, vocab_size) == 0:
        return
    every = tl.arange(0, PARTS)
    top = top_of(part_tops + row * parts, parts, PARTS)
    total = tl.sum(tl.load(masses + row * parts + every, mask=every < parts, other=0))
    by_count = (top_k > 0) & (top_k < vocab_size)
    near_count = tl.load(counters + 2 * row)
    place = tl.arange(0, NEAR)
    there = place < near_count
    token = tl.load(near_tokens + row.to(tl.int64) * NEAR + place, mask=there, other=0)
    distance = distance_of(line, token, there, top, temperature)
    masses_there = _masses(distance, there)
    found, is_enough = _limit_among(distance, near_count, masses_there, limit, top_k, by_count, top_p, total)
    if is_enough & (near_count <= NEAR):
        words = words_of_tokens(tl.load(seeds + row), tl.load(samples + row), tl.load(positions + row), token)
        kept = there & (distance <= found)
        _, winner = best_of(words, distance, kept, token, line, top, temperature, vocab_size)
        # A row of nothing but minus infinities draws whatever there is.
        tl.store(tokens + row, tl.minimum(winner, vocab_size - 1).to(tl.int64))
        tl.store(settled + row, 1)
    else:
        far_count = tl.load(counters + 2 * row + 1)
        is_enough = is_enough & False
        if (far_count > 0) & (far_count <= FAR):
            found, is_enough = _limit_among_far(
                line,
                far_tokens + row.to(tl.int64) * FAR,
                far_count,
                top,
                temperature,
                limit,
                top_k,
                by_count,
                top_p,
                total,
                FAR,
            )
        if is_enough == 0:
            found = _limit_of_row(line, top, temperature, limit, top_k, by_count, top_p, vocab_size, TILE)
        tl.store(limits + row, found)


@triton.jit
def _limit_among_far(
    line,
    tokens,
    count,
    top,
    temperature,
    limit,
    top_k,
    by_count,
    top_p,
    total,
    SIZE: tl.constexpr,
):
    """See `_limit_among`. Masses are in units of 2**-30, in which they take half of the registers."""
    place = tl.arange(0, SIZE)
    there = place < count
    token = tl.load(tokens + place, mask=there, other=0)
    distance = distance_of(line, token, there, top, temperature)
    mass = tl.where(there, tl.exp(-distance) * 1073741824.0 + 0.5, 0.0).to(tl.int32)
    return _limit_among(distance, count, mass, limit, top_k, by_count, top_p, total >> 10)


@triton.jit
def _limit_among(distance, count, masses, limit, top_k, by_count, top_p, total):
    """Return the limit of a row, given `count` of its first tokens, and whether those were enough to know it.

    `total` is the mass of all within `limit`.
    """
    is_enough = count > 0  # of none a nucleus of nothing would be enough, and no token could be drawn
    if by_count:
        is_enough = count >= top_k
        # What is none of the tokens is infinitely far, where the search does not look.
        limit = tl.minimum(limit, _search_among(distance, 1, top_k.to(tl.float64), float("inf")))
        total = tl.sum(tl.where(distance <= limit, masses, 0).to(tl.int64))
    if top_p < 1:
        needed = top_p.to(tl.float64) * total.to(tl.float64)
        within = tl.sum(tl.where(distance <= limit, masses, 0).to(tl.int64))
        is_enough = is_enough & (within.to(tl.float64) >= needed)
        limit = _search_among(distance, masses, needed, limit)
    return limit, is_enough


@triton.jit
def _search_among(distance, weights, needed, limit):
    """Return the least distance, of `limit` at most, within which the weight is `needed`.

    Distances are not negative, so their bits are in order.
    """
    infinite = tl.full((), float("inf"), dtype=tl.float32)
    reaching = tl.minimum(infinite, limit).to(tl.int32, bitcast=True)  # enough is known to be within it
    short = reaching * 0 - 1  # too little is
    while reaching - short > 1:
        middle = short + (reaching - short) // 2
        within = distance <= middle.to(tl.float32, bitcast=True)
        if tl.sum(tl.where(within, weights, 0).to(tl.int64)).to(tl.float64) >= needed:
            reaching = middle
        else:
            short = middle
    return reaching.to(tl.float32, bitcast=True)


@triton.jit
def _limit_of_row(line, top, temperature, limit, top_k, by_count, top_p, vocab_size, TILE: tl.constexpr):
    """Return the limit of a row by reading all of it in each step of a search."""
    if by_count:
        bound = _search(line, top, temperature, float("inf"), top_k.to(tl.float32), vocab_size, False, TILE)
        limit = tl.minimum(limit, bound)
    if top_p < 1:
        _, mass = _measure(line, top, temperature, limit, vocab_size, True, TILE)
        limit = _search(line, top, temperature, limit, top_p * mass, vocab_size, True, TILE)
    return limit


@triton.jit
def _measure(line, top, temperature, limit, vocab_size, MASS: tl.constexpr, TILE: tl.constexpr):
    """Return (the number of tokens within the limit, their weight: the number again, or the mass)."""
    counts = tl.zeros([TILE], dtype=tl.int32)
    masses = tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, vocab_size, TILE):
        token = start + tl.arange(0, TILE)
        there = token < vocab_size
        distance = distance_of(line, token, there, top, temperature)
        within = (distance <= limit) & there
        counts += within.to(tl.int32)
        if MASS:
            masses += tl.where(within, tl.exp(-distance), 0.0)
    count = tl.sum(counts)
    weight = tl.sum(masses) if MASS else count.to(tl.float32)
    return count, weight


@triton.jit
def _search(line, top, temperature, limit, needed, vocab_size, MASS: tl.constexpr, TILE: tl.constexpr):
    """See `_search_among`; the result may be another distance that keeps the same tokens."""
    infinite = tl.full((), float("inf"), dtype=tl.float32)
    reaching = tl.minimum(infinite, limit).to(tl.int32, bitcast=True)
    short = reaching * 0 - 1
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
