"""GPTQ (Frantar et al., 2022): rounding that disturbs a linear map's outputs least.

Columns are rounded one after another, and what rounding one of them changes is made up for by those that are left, as
the inputs of calibration allow. The order is that of the inputs' importance, if wanted. Scales are chosen beforehand,
of the groups as they stand, so that a file says nothing of the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pageant.models.quantizing.rounding import choose_scales
from pageant.models.quantizing.schemes import Scheme

__all__ = ["Hessian", "round_by_hessian"]

_BLOCK = 64  # columns whose errors are spread to the others at once
_TOKENS = 4096  # at a time
_DAMPING_MORE = 10.0
_DAMPING_MAX = 1e3


class Hessian:
    """The second moments of a linear map's inputs, summed over tokens: half the Hessian of its squared error."""

    def __init__(self, inputs: int) -> None:
        self.sums = torch.zeros(inputs, inputs)
        """float32 [N, N]."""
        self.tokens = 0

    def add(self, x: Tensor) -> None:
        """Add the inputs of some tokens, [T, N] of any dtype."""
        self.tokens += len(x)
        for some in torch.split(x, _TOKENS):
            wide = some.float()
            self.sums.addmm_(wide.T, wide)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The order in which columns are rounded, and how an error in one is spread to later ones."""

    order: Tensor
    """int64 [N]."""
    factor: Tensor
    """float32 [N, N]: the upper Cholesky factor of the inverse Hessian, in that order."""


def round_by_hessian(
    weight: Tensor, hessian: Hessian, scheme: Scheme, *, act_order: bool, damping: float
) -> tuple[Tensor, Tensor]:
    """Return codes int8 [M, N] and scales float32 [M, G] of a weight float32 [M, N], which is left as it is.

    act_order: whether the most important inputs are rounded first. damping: what is added to the Hessian's diagonal,
    as a share of its mean; more of it where the matrix cannot be inverted otherwise. Without any token, weights are
    rounded to the nearest.
    """
    importance = hessian.sums.diagonal() / max(1, hessian.tokens)
    scales = choose_scales(weight, scheme, importance.clamp(min=1e-6 * float(importance.mean()) + 1e-30))
    columns = _columns(hessian.sums, act_order, damping)
    inputs = weight.shape[1]
    group = inputs if scheme.group_size is None else scheme.group_size
    work = weight.T[columns.order].contiguous()
    per_column = scales.T[columns.order // group]  # [N, M]
    codes = torch.empty_like(work, dtype=torch.int8)
    for start in range(0, inputs, _BLOCK):
        block = slice(start, min(start + _BLOCK, inputs))
        errors = _round_block(
            work[block], per_column[block], columns.factor[block, block], codes[block], scheme
        )
        work[block.stop :].addmm_(columns.factor[block, block.stop :].T, errors, alpha=-1)
    unsorted = torch.empty_like(codes)
    unsorted[columns.order] = codes
    return unsorted.T.contiguous(), scales


def _round_block(rows: Tensor, scales: Tensor, factor: Tensor, codes: Tensor, scheme: Scheme) -> Tensor:
    """Round some columns of a weight, which are rows here, and spread their errors among them.

    rows: float32 [B, M], mutated. scales: float32 [B, M]. factor: float32 [B, B]. codes: int8 [B, M], mutated.
    Returns errors float32 [B, M], for the columns after these.
    """
    errors = torch.empty_like(rows)
    for number, (column, scale) in enumerate(zip(rows, scales, strict=True)):
        code = (column / scale).round_().clamp_(scheme.least, scheme.most)
        codes[number] = code
        errors[number] = (column - code * scale) / factor[number, number]
        rows[number + 1 :].addr_(factor[number, number + 1 :], errors[number], alpha=-1)
    return errors


def _columns(sums: Tensor, act_order: bool, damping: float) -> _Columns:
    diagonal = sums.diagonal()
    order = diagonal.argsort(descending=True, stable=True) if act_order else torch.arange(len(sums))
    damped = sums[order][:, order]
    # Inputs that were always zero say nothing of their columns, which are rounded to the nearest.
    dead = damped.diagonal() == 0
    damped.diagonal()[dead] = 1.0
    mean = float(damped.diagonal().mean())
    share = damping
    while True:
        lower, failed = torch.linalg.cholesky_ex(_with_diagonal(damped, share * mean))
        if not int(failed):
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed):
                return _Columns(order, upper)
        share = max(share, 1e-3) * _DAMPING_MORE
        assert share < _DAMPING_MAX, "a matrix that is all but diagonal has a factor"


def _with_diagonal(matrix: Tensor, added: float) -> Tensor:
    damped = matrix.clone()
    damped.diagonal().add_(added)
    return damped
