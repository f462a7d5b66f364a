"""Log-probabilities, ranks and the most probable tokens, in one reading of the logits.

`scan_logits` goes over parts of the vocabulary, of which each gives its largest logit, its sum, how many of its
tokens come before the row's own, and its k first tokens; `merge_scans` puts a row's parts together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pageant.kernels.base import TokenLogprobs
from pageant.kernels.reference.sampling import top_logprobs as sorted_logprobs
from pageant.kernels.triton.launching import cdiv, interpreted, next_power_of_2

__all__ = ["merge_scans", "scan_logits", "top_logprobs"]

_PART = 4096
_PICKED_MAX = 64  # tokens that are picked one by one; more are sorted out by the reference


def top_logprobs(logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
    """See `Kernels.top_logprobs`."""
    rows, vocab_size = logits.shape
    if k > _PICKED_MAX:
        return sorted_logprobs(logits, tokens, k)
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    device = logits.device
    part = 256 if interpreted(device) else _PART
    parts = cdiv(vocab_size, part)
    scans = torch.empty((3, rows, parts), dtype=torch.float32, device=device)
    picked = torch.empty((rows, parts, k), dtype=torch.float32, device=device)
    picks = torch.empty((rows, parts, k), dtype=torch.int32, device=device)
    result = TokenLogprobs(
        chosen=torch.empty(rows, dtype=torch.float32, device=device),
        ranks=torch.empty(rows, dtype=torch.int32, device=device),
        top_tokens=torch.empty((rows, k), dtype=torch.int32, device=device),
        top=torch.empty((rows, k), dtype=torch.float32, device=device),
    )
    scan_logits[(rows, parts)](
        logits,
        tokens,
        *scans.unbind(),
        picked,
        picks,
        logits.stride(0),
        vocab_size,
        parts,
        k,
        PART=part,
        num_warps=8,
    )
    merge_scans[(rows,)](
        logits,
        tokens,
        *scans.unbind(),
        picked,
        picks,
        *result,
        logits.stride(0),
        vocab_size,
        parts,
        k,
        PARTS=next_power_of_2(parts),
        PICKS=next_power_of_2(parts) * next_power_of_2(max(1, k)),
        num_warps=4,
    )
    return result


@triton.jit(do_not_specialize=["parts", "k"])
def scan_logits(
    logits,
    tokens,
    tops,
    sums,
    befores,
    picked,
    picks,
    stride,
    vocab_size,
    parts,
    k,
    PART: tl.constexpr,
):
    """Program (row, part)."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    line = logits + row.to(tl.int64) * stride
    token = part * PART + tl.arange(0, PART)
    there = token < vocab_size
    values = tl.load(line + token, mask=there, other=float("-inf"))
    top = tl.max(values)
    own = tl.load(tokens + row)
    level = tl.load(line + own)
    before = there & ((values > level) | ((values == level) & (token < own)))
    place = row * parts + part
    tl.store(tops + place, top)
    base = tl.where(top == float("-inf"), 0.0, top)
    tl.store(sums + place, tl.sum(tl.exp(values - base)))
    tl.store(befores + place, tl.sum(before.to(tl.int32)).to(tl.float32))
    for turn in range(k):
        value, winner, there = _pick(values, token, there, vocab_size)
        tl.store(picked + place * k + turn, value)
        tl.store(picks + place * k + turn, winner)


@triton.jit
def _pick(values, token, there, vocab_size):
    """The first of what is there: (its value, its token or vocab_size if there is none, what else is there)."""
    value = tl.max(tl.where(there, values, float("-inf")))
    winner = tl.min(tl.where(there & (values == value), token, vocab_size))
    return value, winner, there & (token != winner)


@triton.jit(do_not_specialize=["parts", "k"])
def merge_scans(
    logits,
    tokens,
    tops,
    sums,
    befores,
    picked,
    picks,
    chosen,
    ranks,
    top_tokens,
    top_logprobs,
    stride,
    vocab_size,
    parts,
    k,
    PARTS: tl.constexpr,
    PICKS: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    of_row = part < parts
    part_tops = tl.load(tops + row * parts + part, mask=of_row, other=float("-inf"))
    part_sums = tl.load(sums + row * parts + part, mask=of_row, other=0.0)
    top = tl.max(part_tops)
    # As the reference has it: from the largest logit first, then from the logarithm of the sum.
    shift = tl.log(tl.sum(part_sums * tl.exp(part_tops - top)))
    level = tl.load(logits + row.to(tl.int64) * stride + tl.load(tokens + row))
    tl.store(chosen + row, level - top - shift)
    before = tl.sum(tl.load(befores + row * parts + part, mask=of_row, other=0.0))
    tl.store(ranks + row, before.to(tl.int32) + 1)
    pick = tl.arange(0, PICKS)
    values = tl.load(picked + row * parts * k + pick, mask=pick < parts * k, other=float("-inf"))
    token = tl.load(picks + row * parts * k + pick, mask=pick < parts * k, other=0)
    there = (pick < parts * k) & (token < vocab_size)
    for turn in range(k):
        value, winner, there = _pick(values, token, there, vocab_size)
        tl.store(top_tokens + row * k + turn, winner)
        tl.store(top_logprobs + row * k + turn, value - top - shift)
