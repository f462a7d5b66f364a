"""Places of a text's tokens within a sound, by the weights with which they attend to it (Radford et al., 2022).

Dynamic time warping finds the way through the matrix of weights, tokens by rows of the encoder, that gathers most. The
results are transformers'; it walks the matrix by diagonals, whose cells depend on none of each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["token_rows"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_BOTH, _TOKEN, _ROW = 0, 1, 2  # steps to the next token and row, the next token, or the next row


def token_rows(weights: Sequence[Tensor], filter_width: int) -> Int64:
    """Return int64 [tokens]: the row of the encoder at which the way comes to each token.

    weights: float32 [tokens, rows] of each head; at least one head, token and row.
    """
    stacked = torch.stack(list(weights))
    if stacked.shape[1] == 1:
        return np.zeros(1, np.int64)  # all rows are its own, from the first
    spread = torch.std(stacked, dim=1, keepdim=True, unbiased=False)
    normed = (stacked - stacked.mean(dim=1, keepdim=True)) / spread
    matrix = _medians(normed, filter_width).mean(dim=0)
    return _warped(-matrix.cpu().double().numpy())


def _medians(values: Tensor, width: int) -> Tensor:
    """Return the median of each of values [heads, tokens, rows] and its neighbours, `width` in all."""
    beside = width // 2
    if values.shape[-1] <= beside:
        return values
    padded = torch.nn.functional.pad(values, (beside, beside), mode="reflect")
    found: Tensor = padded.unfold(-1, width, 1).sort()[0][..., beside]
    return found


def _warped(costs: Float64) -> Int64:
    """Return the row at which the cheapest way through costs [tokens, rows] comes to each token."""
    steps = _steps(costs)
    token, row = costs.shape
    found = np.zeros(token, np.int64)
    while token > 0:
        # The way reaches row 0 before token 0 only if costs are NaN, whose comparisons are all false.
        found[token - 1] = max(row - 1, 0)
        step = _TOKEN if row == 0 else steps[token, row]
        token -= step != _ROW
        row -= step != _TOKEN
    return found


def _steps(costs: Float64) -> npt.NDArray[np.int8]:
    """Return int8 [tokens + 1, rows + 1]: the last step of the cheapest way to each cell of costs [tokens, rows].

    Totals are in float32, and ties go to the next row, as with transformers.
    """
    tokens, rows = costs.shape
    totals = np.full((tokens + 1, rows + 1), np.inf, np.float32)
    totals[0, 0] = 0
    steps = np.full((tokens + 1, rows + 1), _ROW, np.int8)
    for diagonal in range(2, tokens + rows + 1):
        token = np.arange(max(1, diagonal - rows), min(tokens, diagonal - 1) + 1)
        row = diagonal - token
        both, other, same = totals[token - 1, row - 1], totals[token - 1, row], totals[token, row - 1]
        is_both, is_other = (both < other) & (both < same), (other < both) & (other < same)
        least = np.where(is_both, both, np.where(is_other, other, same))
        totals[token, row] = costs[token - 1, row - 1] + least
        steps[token, row] = np.where(is_both, _BOTH, np.where(is_other, _TOKEN, _ROW))
    return steps
