"""Stateless sampling: the noise that samples a token, and the filters before it.

A row's token is argmax(filtered logits + Gumbel noise), which samples from their softmax exactly (Gumbel, 1954;
Maddison, Tarlow, Minka: A* sampling, 2014). The noise is a function of (seed, sample, position, token id) and
of nothing else. A request's tokens are therefore the same in any batch, after a preemption and on any shard of
the vocabulary. Sampling by the inverse of the cumulative distribution was rejected: there the last bits of any
logit can change every token after it.

The noise of token v, for a row with its seed, sample and position:

    words = philox4x32_10(key     = (seed's low word, seed's high word),
                          counter = (v // 4, position's low word, position's high word, sample))
    u     = (words[v % 4] + 0.5) / 2**32          in (0, 1), never either end
    noise = -log(-log(u))                         in [-3.13, 22.9]

It is computed in float64 and rounded to float32 once: in float32, u would be 1 for the largest words.

The filters are in vLLM's order: the temperature divides the logits; then come min_p, top_k and top_p. Each
works on what the one before it left. Each is a threshold, so that tokens of equal logit stay or go together:
- min_p keeps tokens whose probability is at least min_p times the largest one;
- top_k keeps tokens whose logit is at least the k-th largest one;
- top_p keeps tokens whose probability is at least that of the last token needed for the most probable ones
  to sum to at least top_p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import SamplingTensors
from pageant.kernels.philox import philox4x32

__all__ = ["GREEDY_TEMPERATURE", "filter_logits", "gumbel_noise", "select_rows", "token_noise"]

GREEDY_TEMPERATURE = 1e-5
"""Below it a row is greedy, as in vLLM: the division would leave one token anyway."""

_WORD = 0xFFFFFFFF
_NOWHERE = float("-inf")
# Most nuclei are small: the whole vocabulary is sorted only for rows whose nucleus is not.
_NUCLEUS_GUESS = 1024


def select_rows(params: SamplingTensors, rows: Tensor) -> SamplingTensors:
    """Return the parameters of some rows (int64 [n])."""
    return SamplingTensors(
        temperature=params.temperature[rows],
        top_k=params.top_k[rows],
        top_p=params.top_p[rows],
        min_p=params.min_p[rows],
        seed=params.seed[rows],
        sample=params.sample[rows],
        position=params.position[rows],
        filters=params.filters,
    )


def gumbel_noise(seed: Tensor, sample: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Return float32 [R, vocab_size]: the noise of every token, for rows of seed, sample, position [R]."""
    quads = torch.arange((vocab_size + 3) // 4, device=seed.device)
    counter, key = _counter_and_key(seed[:, None], sample[:, None], position[:, None], quads[None])
    words = torch.stack(philox4x32(counter, key), dim=-1)  # [R, quads, 4]
    return _gumbel(words.flatten(1)[:, :vocab_size])


def token_noise(seed: Tensor, sample: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """Return float32 [N]: the noise of token `tokens[i]` for `seed[i]`, `sample[i]`, `position[i]`.

    Equal to the entries of `gumbel_noise`, at four times the work for each.
    """
    counter, key = _counter_and_key(seed, sample, position, tokens // 4)
    words = torch.stack(philox4x32(counter, key), dim=-1)  # [N, 4]
    return _gumbel(words.gather(-1, (tokens % 4)[:, None])[:, 0])


def _counter_and_key(
    seed: Tensor, sample: Tensor, position: Tensor, quads: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    position = position.long()
    counter = (quads, position & _WORD, (position >> 32) & _WORD, sample.long() & _WORD)
    return counter, (seed & _WORD, (seed >> 32) & _WORD)


def _gumbel(words: Tensor) -> Tensor:
    uniform = words.double().add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().float()


def filter_logits(logits: Tensor, params: SamplingTensors) -> Tensor:
    """Return new logits float32 [R, V], tempered and shifted to a maximum of 0, the unwanted at -inf.

    No row of `params` is greedy. Shifting first keeps the division from overflowing.
    """
    logits = logits - logits.amax(dim=-1, keepdim=True)
    logits /= params.temperature[:, None]
    _apply_min_p(logits, params.min_p)
    _apply_top_k(logits, params.top_k)
    _apply_top_p(logits, params.top_p)
    return logits


def _apply_min_p(logits: Tensor, min_p: Tensor) -> None:
    """Drop tokens by min_p. Mutates logits, whose maximum is 0: there, log(min_p) is the threshold."""
    if bool((min_p > 0).any()):
        logits.masked_fill_(logits < min_p.log()[:, None], _NOWHERE)


def _apply_top_k(logits: Tensor, top_k: Tensor) -> None:
    """Drop tokens by top_k. Mutates logits."""
    rows = ((top_k > 0) & (top_k < logits.shape[-1])).nonzero()[:, 0]
    if rows.numel() == 0:
        return
    k = top_k[rows].long()
    largest = logits[rows].topk(int(k.max()), dim=-1).values  # [n, max k]
    _drop_below(logits, rows, largest.gather(-1, k[:, None] - 1))


def _apply_top_p(logits: Tensor, top_p: Tensor) -> None:
    """Drop tokens by top_p. Mutates logits. Each row first sorts its most probable tokens, then, if needed,
    all.
    """
    rows = (top_p < 1).nonzero()[:, 0]
    vocab_size = logits.shape[-1]
    for size in sorted({min(_NUCLEUS_GUESS, vocab_size), vocab_size}):
        if rows.numel() == 0:
            return
        kept = logits[rows]
        largest = kept.topk(size, dim=-1).values
        reached = (largest - kept.logsumexp(-1, keepdim=True)).exp_().cumsum(-1)  # [n, size]
        short = reached < top_p[rows, None]
        last = short.sum(-1, keepdim=True).clamp_(max=size - 1)
        found = ~short[:, -1] if size < vocab_size else torch.ones_like(short[:, -1])
        _drop_below(logits, rows[found], largest.gather(-1, last)[found])
        rows = rows[~found]


def _drop_below(logits: Tensor, rows: Tensor, thresholds: Tensor) -> None:
    """Mutate the given rows (int64 [n]) of logits, dropping what is below thresholds [n, 1]."""
    kept = logits[rows]
    logits[rows] = kept.masked_fill_(kept < thresholds, _NOWHERE)
