"""Kernels that hand the inputs of a weight to the Hessians that are gathered of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pageant.kernels.base import NO_BIASES, ExpertBiases, Kernels
from pageant.kernels.tiled import LinearWeight
from pageant.models.quantizing.gptq import Hessian

__all__ = ["ObservedKernels"]


class _ObservedError(Exception):
    """Ends a forward pass where the inputs that were wanted have been seen."""


class ObservedKernels:
    """Implements `Kernels` by another backend; products with the weight that is watched are seen, and not computed."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._weight: Tensor | None = None
        self._hessians: Sequence[Hessian] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def observe(
        self, weight: Tensor, hessians: Sequence[Hessian], passes: Sequence[Callable[[], Any]]
    ) -> None:
        """Run forward passes as far as a weight, and add its inputs to the Hessians.

        weight: [M, N] of any dtype with one Hessian, or a stack of experts [E, M, N] with E.
        """
        self._weight, self._hessians = weight, hessians
        try:
            for run in passes:
                try:
                    run()
                except _ObservedError:
                    continue
        finally:
            self._weight, self._hessians = None, ()

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        """See `Kernels.linear`."""
        self._look(x, weight)
        return self._kernels.linear(x, weight, bias)

    def gated_linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, activation: str) -> Tensor:
        """See `Kernels.gated_linear`."""
        self._look(x, weight)
        return self._kernels.gated_linear(x, weight, bias, activation)

    def _look(self, x: Tensor, weight: LinearWeight) -> None:
        if weight is self._weight:
            (hessian,) = self._hessians
            hessian.add(x)
            raise _ObservedError

    def moe(
        self,
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        weights: Tensor,
        experts: Tensor,
        activation: str,
        *,
        biases: ExpertBiases = NO_BIASES,
    ) -> Tensor:
        """See `Kernels.moe`."""
        if self._weight is None or not (self._weight is gate_up or self._weight is down):
            return self._kernels.moe(x, gate_up, down, weights, experts, activation, biases=biases)
        for expert, hessian in enumerate(self._hessians):
            chosen = x[torch.nonzero((experts == expert).any(1))[:, 0]]
            if not len(chosen):
                continue
            if self._weight is down:
                bias = None if biases.gate_up is None else biases.gate_up[expert]
                if activation == "relu2":
                    chosen = self._kernels.linear(chosen, gate_up[expert], bias).relu().square()
                else:
                    chosen = self._kernels.gated_linear(chosen, gate_up[expert], bias, activation)
            hessian.add(chosen)
        raise _ObservedError
