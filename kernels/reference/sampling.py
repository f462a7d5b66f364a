"""Drawing tokens, with work only for the rows that need it."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import SamplingTensors, TokenLogprobs, TokenMasks
from pageant.kernels.sampling import (
    GREEDY_TEMPERATURE,
    filter_logits,
    gumbel_noise,
    select_rows,
    token_noise,
)

__all__ = ["mask_logits", "sample", "top_logprobs"]

# Noise is made for this many words at a time, so that its temporaries stay in the cache of a core.
_NOISE_WORDS_MAX = 1 << 17


def mask_logits(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """See `Kernels.mask_logits`."""
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits[:, :, None] >> places & 1).flatten(1)[:, : logits.shape[-1]].bool()  # [n, V]
    logits[rows] = logits[rows].masked_fill_(~allowed, float("-inf"))


def sample(logits: Tensor, params: SamplingTensors, masks: TokenMasks | None = None) -> Tensor:
    """See `Kernels.sample`."""
    if masks is not None:
        mask_logits(logits, *masks)
    tokens = logits.argmax(dim=-1)  # the first of equals
    rows = (params.temperature >= GREEDY_TEMPERATURE).nonzero()[:, 0]
    if rows.numel():
        tokens[rows] = _draw(logits[rows], select_rows(params, rows))
    return tokens


def _draw(logits: Tensor, params: SamplingTensors) -> Tensor:
    """Return int64 [R]. Rows with few tokens left get noise for those alone: the same noise, sooner."""
    scores = filter_logits(logits, params)
    few = scores.isfinite().sum(dim=-1) < scores.shape[-1] // 4
    _add_noise_to_few(scores, params, few.nonzero()[:, 0])
    _add_noise_to_all(scores, params, few.logical_not().nonzero()[:, 0])
    return scores.argmax(dim=-1)


def _add_noise_to_few(scores: Tensor, params: SamplingTensors, rows: Tensor) -> None:
    """Mutates the rows of scores."""
    index, tokens = scores[rows].isfinite().nonzero(as_tuple=True)
    owners = rows[index]
    noise = token_noise(params.seed[owners], params.sample[owners], params.position[owners], tokens)
    scores[owners, tokens] += noise


def _add_noise_to_all(scores: Tensor, params: SamplingTensors, rows: Tensor) -> None:
    """Mutates the rows of scores."""
    vocab_size = scores.shape[-1]
    for part in torch.split(rows, max(1, _NOISE_WORDS_MAX // vocab_size)):
        noise = gumbel_noise(params.seed[part], params.sample[part], params.position[part], vocab_size)
        scores[part] += noise


def top_logprobs(logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
    """See `Kernels.top_logprobs`."""
    logprobs, tokens = logits.log_softmax(dim=-1), tokens[:, None]
    ranking = _ranking(logits)
    top_tokens = ranking.topk(k, dim=-1).indices
    return TokenLogprobs(
        chosen=logprobs.gather(-1, tokens)[:, 0],
        ranks=(ranking >= ranking.gather(-1, tokens)).sum(dim=-1, dtype=torch.int32),
        top_tokens=top_tokens.int(),
        top=logprobs.gather(-1, top_tokens),
    )


def _ranking(logits: Tensor) -> Tensor:
    """Return int64 [R, V], which grow with the logit and fall with the token's id: no two are equal.

    A float's bits, sign apart, grow with its size; those of -0, which equals 0, are made 0's.
    """
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.long() << 32) - torch.arange(logits.shape[-1], device=logits.device)
