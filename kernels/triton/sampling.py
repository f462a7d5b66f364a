"""Drawing tokens: the reference's tokens exactly, in a few launches of which none sorts.

`survey` finds the largest logit of each part of the vocabulary, which is all that greedy rows need. `narrow`, `collect`
and `settle` apply top_k and top_p (see `filtering`), and do nothing for rows that have neither; where no row has, they
are not launched. `draw` goes over the vocabulary in parts for rows that are left, and `choose` takes the best of the
parts. So every launch but the small ones has as many programs as there are parts: one for each row would leave most of
a device idle.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import SamplingTensors, TokenMasks
from pageant.kernels.sampling import GREEDY_TEMPERATURE
from pageant.kernels.triton.filtering import collect, distance_of, limit_by_min_p, narrow, settle, top_of
from pageant.kernels.triton.launching import cdiv, interpreted, next_power_of_2
from pageant.kernels.triton.noise import best_of, words_of_part

__all__ = ["choose", "draw", "mask_logits", "mask_part", "sample", "survey"]

_PART = 4096  # tokens of the vocabulary that a program reads
_SEGMENT = 128  # tokens of which `narrow` looks at the largest logit
_NEAR, _FAR = 2048, 16384  # tokens that `settle` holds in registers
_WANTED = 512  # segments whose largest logits the near tokens include
_TINY = {"part": 256, "segment": 8, "near": 64, "far": 1024, "wanted": 16}
"""The same for the interpreter, whose programs are slow and whose tests have few tokens."""


def mask_logits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """See `Kernels.mask_logits`."""
    vocab_size, (count, words) = logits.shape[1], bits.shape
    if not count:
        return
    part = _TINY["part"] if interpreted(logits.device) else _PART
    grid = (count, cdiv(vocab_size, part))
    mask_part[grid](logits, rows, bits, logits.stride(0), vocab_size, words, PART=part, num_warps=8)


def sample(logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
    """See `Kernels.sample`."""
    if masks is not None:
        mask_logits(logits, *masks)
    rows, vocab_size = logits.shape
    device = logits.device
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    if not rows:
        return tokens
    part, segment = (_TINY["part"], _TINY["segment"]) if interpreted(device) else (_PART, _SEGMENT)
    parts, stride = cdiv(vocab_size, part), logits.stride(0)
    every, temperature = next_power_of_2(parts), params.temperature
    part_tops, best, found = torch.empty((3, rows, parts), dtype=torch.float32, device=device).unbind()
    found = found.view(torch.int32)
    segments = parts * (part // segment)
    peaks = torch.empty((rows, segments), dtype=torch.float32, device=device) if params.filters else None
    survey[(rows, parts)](
        *(logits, temperature, part_tops, peaks, best, found, stride, vocab_size, parts),
        GREEDY=GREEDY_TEMPERATURE,
        PART=part,
        SEGMENT=segment,
        num_warps=8,
    )
    limits = settled = None
    if peaks is not None:
        limits, settled = _filter(logits, params, part_tops, peaks, tokens, part, parts)
    draw[(rows, parts)](
        *(logits, temperature, params.min_p, params.seed, params.sample, params.position),
        *(part_tops, limits, settled, best, found, stride, vocab_size, parts),
        GREEDY=GREEDY_TEMPERATURE,
        PART=part,
        PARTS=every,
        num_warps=8,
    )
    choose[(rows,)](best, found, settled, tokens, parts, vocab_size, PARTS=every, num_warps=1)
    return tokens


def _filter(
    logits: Tensor,
    params: SamplingTensors,
    part_tops: Tensor,
    peaks: Tensor,
    tokens: Tensor,
    part: int,
    parts: int,
) -> tuple[Tensor, Tensor]:
    """Return float32 [R], how far from the top a token may be, and int32 [R], whether the row is drawn already."""
    (rows, vocab_size), device, stride = logits.shape, logits.device, logits.stride(0)
    tiny = interpreted(device)
    near, far, wanted = (_TINY["near"], _TINY["far"], _TINY["wanted"]) if tiny else (_NEAR, _FAR, _WANTED)
    segments, every = peaks.shape[1], next_power_of_2(parts)
    masses = torch.empty((rows, parts), dtype=torch.int64, device=device)
    floors = torch.empty((rows, 2), dtype=torch.float32, device=device)
    counters = torch.empty((rows, 2), dtype=torch.int32, device=device)
    limits = torch.empty(rows, dtype=torch.float32, device=device)
    settled = torch.empty(rows, dtype=torch.int32, device=device)
    near_tokens = torch.empty((rows, near), dtype=torch.int32, device=device)
    far_tokens = torch.empty((rows, far), dtype=torch.int32, device=device)
    temperature, filters = params.temperature, (params.top_k, params.top_p)
    narrow[(rows,)](
        *(temperature, *filters, peaks, floors, counters, vocab_size, segments),
        GREEDY=GREEDY_TEMPERATURE,
        WANTED=wanted,
        SEGMENTS=next_power_of_2(segments),
        num_warps=8,
    )
    collect[(rows, parts)](
        *(logits, temperature, *filters, params.min_p, part_tops, masses, floors),
        *(counters, near_tokens, far_tokens, stride, vocab_size, parts),
        GREEDY=GREEDY_TEMPERATURE,
        PART=part,
        PARTS=every,
        NEAR=near,
        FAR=far,
        num_warps=8,
    )
    settle[(rows,)](
        *(logits, temperature, *filters, params.min_p, params.seed, params.sample, params.position),
        *(part_tops, masses, counters, near_tokens, far_tokens, limits, settled, tokens),
        *(stride, vocab_size, parts),
        GREEDY=GREEDY_TEMPERATURE,
        PARTS=every,
        NEAR=near,
        FAR=far,
        TILE=part,
        num_warps=16,
    )
    return limits, settled


@triton.jit
def mask_part(logits, rows, bits, stride, vocab_size, words, PART: tl.constexpr):
    """Program (mask, part of the vocabulary): minus infinity where a bit is not set."""
    mask = tl.program_id(0)
    line = logits + tl.load(rows + mask) * stride
    token = tl.program_id(1) * PART + tl.arange(0, PART)
    there = token < vocab_size
    word = tl.load(bits + mask.to(tl.int64) * words + token // 32, mask=there, other=-1)
    banned = there & (((word >> (token % 32)) & 1) == 0)
    tl.store(line + token, float("-inf"), mask=banned)


@triton.jit
def survey(
    logits,
    temperatures,
    part_tops,
    peaks,
    best,
    found,
    stride,
    vocab_size,
    parts,
    GREEDY: tl.constexpr,
    PART: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """Program (row, part of the vocabulary): its largest logit, and each segment's; a greedy row's token there."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    line = logits + row.to(tl.int64) * stride
    token = part * PART + tl.arange(0, PART)
    values = tl.load(line + token, mask=token < vocab_size, other=float("-inf"))
    place = row * parts + part
    COUNT: tl.constexpr = PART // SEGMENT
    of_segments = tl.max(tl.reshape(values, [COUNT, SEGMENT]), axis=1)
    if peaks is not None:
        tl.store(peaks + place.to(tl.int64) * COUNT + tl.arange(0, COUNT), of_segments)
    top = tl.max(of_segments)
    tl.store(part_tops + place, top)
    if tl.load(temperatures + row) < GREEDY:
        tl.store(best + place, top)
        tl.store(found + place, tl.min(tl.where(values == top, token, vocab_size)))


@triton.jit
def draw(
    logits,
    temperatures,
    min_ps,
    seeds,
    samples,
    positions,
    part_tops,
    limits,
    settled,
    best,
    found,
    stride,
    vocab_size,
    parts,
    GREEDY: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (row, part of the vocabulary): the best score there, and the lowest token that has it."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    done = temperature < GREEDY
    if settled is not None:
        done = done | (tl.load(settled + row) != 0)
    if done:
        return
    line = logits + row.to(tl.int64) * stride
    token = part * PART + tl.arange(0, PART)
    there = token < vocab_size
    top = top_of(part_tops + row * parts, parts, PARTS)
    limit = limit_by_min_p(tl.load(min_ps + row)) if limits is None else tl.load(limits + row)
    # A division is exact and slow: where no limit asks for it, an estimate is made without.
    distance = (top - tl.load(line + token, mask=there, other=float("-inf"))) * (1.0 / temperature)
    kept = there
    if limit < float("inf"):
        kept = there & (distance_of(line, token, there, top, temperature) <= limit)
    words = words_of_part(tl.load(seeds + row), tl.load(samples + row), tl.load(positions + row), part, PART)
    score, winner = best_of(words, distance, kept, token, line, top, temperature, vocab_size)
    tl.store(best + row * parts + part, score)
    tl.store(found + row * parts + part, winner)


@triton.jit
def choose(best, found, settled, tokens, parts, vocab_size, PARTS: tl.constexpr):
    """Program (row): the token of the best part, the lowest of equals."""
    row = tl.program_id(0)
    done = row < 0
    if settled is not None:
        done = tl.load(settled + row) != 0
    if done:
        return
    part = tl.arange(0, PARTS)
    scores = tl.load(best + row * parts + part, mask=part < parts, other=float("-inf"))
    winners = tl.load(found + row * parts + part, mask=part < parts, other=0)
    winner = tl.min(tl.where((scores == tl.max(scores)) & (part < parts), winners, vocab_size))
    # A row of nothing but minus infinities draws whatever there is.
    tl.store(tokens + row, tl.minimum(winner, vocab_size - 1).to(tl.int64))
