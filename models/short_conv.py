"""A recurrent layer: the gated short convolution of LFM2, from the normalised input to its output projection."""

from __future__ import annotations

from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.states import StateBatch
from pageant.models.decoder import Wanted
from pageant.models.projection import Projection
from pageant.models.recurrent_states import LayerState
from pageant.models.weights import Weights

__all__ = ["ShortConv"]


class ShortConv:
    """A causal convolution of each channel, gated before and after."""

    def __init__(self, weights: Weights, kernels: Kernels) -> None:
        self._kernels = kernels
        self._in = Projection("conv_in", weights, kernels)
        self._o = Projection("conv_o", weights, kernels)
        self.projections = {"conv_in": self._in, "conv_o": self._o}
        self._taps, self._bias = weights["conv_taps.weight"], weights.get("conv_taps.bias")

    def __call__(
        self,
        normed: Tensor,
        positions: Tensor,
        batch: StateBatch,
        state: LayerState,
        wanted: Wanted | None = None,
    ) -> Tensor:
        """Return [T, hidden_size] for normed [T, hidden_size], or [D, hidden_size] for the tokens that are `wanted`.
        Mutates the state at the batch's blocks, for all."""
        before, after, values = self._in(normed).chunk(3, dim=1)
        (channels,) = state.with_kept(batch, before * values)
        mixed = self._kernels.causal_conv(
            channels, self._taps[:, 0], self._bias, state.memory, batch, activated=False
        )
        mixed = mixed[: len(normed)]
        if wanted is not None:
            mixed, after = mixed[wanted.tokens], after[wanted.tokens]
        return self._o(after * mixed)
