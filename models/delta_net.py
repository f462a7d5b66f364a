"""A recurrent layer: the gated DeltaNet (Yang et al., 2024), from the normalised input to its output projection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from pageant.kernels.base import Kernels
from pageant.kernels.states import StateBatch
from pageant.models.decoder import Wanted
from pageant.models.mlp import sigmoid_alike
from pageant.models.projection import Projection
from pageant.models.recurrent_spec import DeltaNetSpec
from pageant.models.recurrent_states import LayerState
from pageant.models.spec import NormSpec
from pageant.models.weights import Weights

__all__ = ["DeltaNet"]


class DeltaNet:
    """Short convolution, gated delta rule, and a gated norm of each head's result."""

    def __init__(self, spec: DeltaNetSpec, norm: NormSpec, weights: Weights, kernels: Kernels) -> None:
        self._spec, self._eps, self._kernels = spec, norm.eps, kernels
        self._qkvz = Projection("delta_qkvz", weights, kernels)
        self._ba = Projection("delta_ba", weights, kernels)
        self._o = Projection("delta_o", weights, kernels)
        self.projections = {"delta_qkvz": self._qkvz, "delta_ba": self._ba, "delta_o": self._o}
        self._conv = weights["delta_conv.weight"]
        self._decay, self._time_bias = weights["delta_decay.weight"], weights["delta_time_bias.weight"]
        self._scale = weights["delta_scale.weight"]

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
        count = len(normed)
        channels, gate, strength, decay = self._project(normed)
        channels, strength, decay = state.with_kept(batch, channels, strength, decay)
        conv = self._conv[:, 0]
        read = self._kernels.gated_delta_net(channels, conv, decay, strength, state.memory, batch)
        read = read[:count]
        if wanted is not None:
            read, gate = read[wanted.tokens], gate[wanted.tokens]
        normal = self._kernels.rms_norm(read.to(normed.dtype), self._scale, self._eps)
        return self._o((normal * silu(gate.float())).to(normed.dtype).flatten(1))

    def _project(self, normed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the convolution's inputs [T, C], gates [T, H, value_dim], strengths and decays, float32 [T, H]."""
        spec, count = self._spec, len(normed)
        qkvz, ba = self._qkvz(normed), self._ba(normed)
        if spec.by_head:
            values = spec.values_size // spec.num_key_heads
            split = [spec.key_dim, spec.key_dim, values, values]
            parts = qkvz.view(count, spec.num_key_heads, -1).split_with_sizes(split, dim=2)
            query, key, value, gate = (part.reshape(count, -1) for part in parts)
            channels = torch.cat([query, key, value], dim=1)
            b, a = (part.reshape(count, -1) for part in ba.view(count, spec.num_key_heads, -1).chunk(2, 2))
        else:
            channels, gate = qkvz.split_with_sizes([spec.num_channels, spec.values_size], dim=1)
            b, a = ba.chunk(2, dim=1)
        # In float64: see `sigmoid_alike`.
        decay = -self._decay.exp() * softplus((a.float() + self._time_bias).double()).float()
        return channels, gate.reshape(count, -1, spec.value_dim), sigmoid_alike(b).float(), decay
