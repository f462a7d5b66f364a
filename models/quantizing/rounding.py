"""Scales of groups by trial, and rounding to the nearest code."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.models.quantizing.schemes import Scheme

__all__ = ["choose_scales", "dequantised", "round_to_codes"]

# Numbers that are looked at at a time.
_CHUNK = 1 << 21
_DIVISORS = {4: (7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0, 10.5), 8: (127.0, 127.5, 128.0)}
"""Candidates of a scale are the largest size of a group's numbers over these."""
_ZERO = 1e-30
"""A group without a larger number counts as zeros."""


def choose_scales(weight: Tensor, scheme: Scheme, importance: Tensor | None = None) -> Tensor:
    """Return the scales of a matrix, float32 [M, G], each above zero and exact in bfloat16.

    Of a few candidates, and of the least-squares scale of the best one's codes, a group gets the one with the least
    squared error.

    weight: float32 [M, N]. importance: float32 [N], what an input's squared error counts; None counts all alike.
    """
    rows = max(1, _CHUNK // weight.shape[1])
    return torch.cat([_scales(part, scheme, importance) for part in torch.split(weight, rows)])


def _scales(weight: Tensor, scheme: Scheme, importance: Tensor | None) -> Tensor:
    groups = torch.unflatten(weight, 1, (scheme.groups(weight.shape[1]), -1))
    counts = None if importance is None else importance.view(groups.shape[1:])
    largest = groups.abs().amax(2, keepdim=True)
    trial = _Trial(groups, counts, scheme)
    for divisor in _DIVISORS[scheme.bits]:
        trial.take(largest / divisor)
    trial.take(trial.least_squares())
    return torch.where(largest < _ZERO, 1.0, trial.scales)[..., 0]


class _Trial:
    """The best scales so far of groups [M, G, g]."""

    def __init__(self, groups: Tensor, counts: Tensor | None, scheme: Scheme) -> None:
        self._groups, self._counts, self._scheme = groups, counts, scheme
        self._errors = torch.full_like(groups[..., :1], torch.inf)
        self.scales = torch.ones_like(self._errors)

    def take(self, scales: Tensor) -> None:
        """Keep these scales, rounded to bfloat16, where their error is smaller. scales: float32 [M, G, 1]."""
        scales = scales.bfloat16().float()
        inverse = torch.where(scales < _ZERO, 0, 1 / scales)
        errors = self._codes(inverse).mul_(scales).sub_(self._groups).square_()
        if self._counts is not None:
            errors.mul_(self._counts)
        errors = errors.sum(2, keepdim=True)
        better = errors < self._errors
        self._errors = torch.where(better, errors, self._errors)
        self.scales = torch.where(better, scales, self.scales)

    def least_squares(self) -> Tensor:
        """Return the scales that fit the codes of the best ones best, float32 [M, G, 1]."""
        codes = self._codes(1 / self.scales)
        counted = codes if self._counts is None else codes * self._counts
        over = (counted * codes).sum(2, keepdim=True)
        fitted = (counted * self._groups).sum(2, keepdim=True) / over
        return torch.where((over > 0) & (fitted > 0), fitted, self.scales)

    def _codes(self, inverse: Tensor) -> Tensor:
        return (self._groups * inverse).round_().clamp_(self._scheme.least, self._scheme.most)


def round_to_codes(weight: Tensor, scales: Tensor, scheme: Scheme) -> Tensor:
    """Return the nearest codes, int8 [M, N], of weight float32 [M, N] by scales float32 [M, G]."""
    groups = torch.unflatten(weight, 1, (scales.shape[1], -1))
    codes = (groups / scales[..., None]).round_().clamp_(scheme.least, scheme.most)
    return codes.flatten(1).to(torch.int8)


def dequantised(codes: Tensor, scales: Tensor) -> Tensor:
    """Return float32 [M, N] of codes int8 [M, N] and scales float32 [M, G]."""
    groups = torch.unflatten(codes, 1, (scales.shape[1], -1))
    return (groups * scales[..., None]).flatten(1)
