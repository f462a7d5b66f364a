"""Interface of the functions of recurrent layers, which all backends have."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from pageant.kernels.states import StateBatch, StateMemory

__all__ = ["RecurrentFunctions"]


@runtime_checkable
class RecurrentFunctions(Protocol):
    """The part of `Kernels` that computes on states of sequences, which lie in blocks of the KV cache."""

    def gated_delta_net(
        self,
        channels: Tensor,
        conv: Tensor,
        decay: Tensor,
        strength: Tensor,
        memory: StateMemory,
        batch: StateBatch,
    ) -> Tensor:
        """Return what queries read of their heads' states, token after token: float32 [T, H, value_dim].

        It is a gated DeltaNet (Yang et al., 2024) from its short convolution on. channels [T, C] are the convolution's
        inputs of queries, keys and values, in the memory's dtype; conv [C, kernel] too. decay: float32 [T, H],
        logarithms, at most 0. strength: float32 [T, H]. T counts tokens that are replayed, behind the step's own.

        A token's numbers do not depend on how many of its sequence are computed in a step. Mutates the memory at the
        batch's blocks.
        """
        ...

    def causal_conv(
        self,
        channels: Tensor,
        conv: Tensor,
        bias: Tensor | None,
        memory: StateMemory,
        batch: StateBatch,
        *,
        activated: bool,
    ) -> Tensor:
        """Return a causal convolution of each channel, [T, C] in the memory's dtype; with `activated`, the SiLU of it.

        channels [T, C] are its inputs in the memory's dtype; so are conv [C, kernel] and bias [C]. Sums are in float32,
        and rounded once. T counts tokens that are replayed, behind the step's own. A token's numbers do not depend on
        how many of its sequence are computed in a step. Mutates the last inputs in the memory at the batch's blocks.
        """
        ...

    def state_space(
        self,
        mixed: Tensor,
        decay: Tensor,
        time_step: Tensor,
        skip: Tensor,
        memory: StateMemory,
        batch: StateBatch,
    ) -> Tensor:
        """Return what queries read of their heads' states, token after token: float32 [T, H, value_dim].

        It is Mamba-2 (Dao, Gu, 2024) behind its convolution: mixed [T, C] are the values of H heads, then the keys (B)
        and the queries (C) of groups of heads, in the memory's dtype. decay: float32 [T, H], logarithms, at most 0.
        time_step: float32 [T, H]. skip: float32 [H], the share of a head's values that is added to what it reads. T
        counts tokens that are replayed, behind the step's own.

        A token's numbers do not depend on how many of its sequence are computed in a step. Mutates the matrices in the
        memory at the batch's blocks.
        """
        ...
