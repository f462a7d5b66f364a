"""A recurrent layer: Mamba-2 (Dao, Gu, 2024), from the normalised input to its output projection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pageant.kernels.base import Kernels
from pageant.kernels.states import StateBatch
from pageant.models.decoder import Wanted
from pageant.models.projection import Projection
from pageant.models.recurrent_spec import MambaSpec
from pageant.models.recurrent_states import LayerState
from pageant.models.spec import NormSpec
from pageant.models.weights import Weights

__all__ = ["Mamba"]


class Mamba:
    """Short convolution, state-space recurrence, and a gated norm of each group of heads."""

    def __init__(self, spec: MambaSpec, norm: NormSpec, weights: Weights, kernels: Kernels) -> None:
        self._spec, self._eps, self._kernels = spec, norm.eps, kernels
        self._in = Projection("mamba_in", weights, kernels)
        self._o = Projection("mamba_o", weights, kernels)
        self.projections = {"mamba_in": self._in, "mamba_o": self._o}
        self._conv, self._conv_bias = weights["mamba_conv.weight"], weights.get("mamba_conv.bias")
        self._decay, self._skip = weights["mamba_decay.weight"], weights["mamba_skip.weight"]
        self._time_bias = weights["mamba_time_bias.weight"]
        self._scale = weights.get("mamba_scale.weight")
        self._multipliers = _multipliers(spec, self._conv)
        self._ones = torch.ones(spec.values_size // spec.num_groups, device=self._conv.device)

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
        spec, memory = self._spec, state.memory
        gate, channels, time = self._project(normed)
        # In float64: see `sigmoid_alike`.
        step = softplus((time.float() + self._time_bias).double()).float().clamp(*spec.time_step_limits)
        channels, step = state.with_kept(batch, channels, step)
        mixed = self._kernels.causal_conv(
            channels, self._conv[:, 0], self._conv_bias, memory, batch, activated=True
        )
        decay = -self._decay.exp() * step
        read = self._kernels.state_space(mixed, decay, step, self._skip, memory, batch)
        read = read[: len(normed)].flatten(1)
        if wanted is not None:
            read, gate = read[wanted.tokens], gate[wanted.tokens]
        output = self._o(self._gated(read, gate).to(normed.dtype))
        return output if spec.output_scale is None else output.mul_(spec.output_scale)

    def _project(self, normed: Tensor) -> tuple[Tensor, ...]:
        """Return gates [T, values], the convolution's inputs [T, C] and time steps before the softplus [T, H]."""
        spec = self._spec
        projected = self._in(normed)
        if self._multipliers is not None:
            projected = projected * self._multipliers
        return projected.split_with_sizes([spec.values_size, spec.num_channels, spec.num_heads], dim=1)

    def _gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """Return what heads read, float32 [T, values], normalised and multiplied by the SiLU of the gate."""
        if self._spec.gate == "after_norm":
            read = self._normal(read)
        gated = self._kernels.silu_and_mul(torch.cat([gate.float(), read], dim=1))
        return self._normal(gated) if self._spec.gate == "before_norm" else gated

    def _normal(self, x: Tensor) -> Tensor:
        """Return x, float32 [T, values], each group of heads divided by its root mean square, times the weight."""
        assert self._scale is not None, "a layer with a norm has its weight"
        groups = x.view(len(x), self._spec.num_groups, len(self._ones))
        normal: Tensor = self._kernels.rms_norm(groups, self._ones, self._eps).flatten(1) * self._scale
        return normal


def _multipliers(spec: MambaSpec, like: Tensor) -> Tensor | None:
    """Return what the input's projection is multiplied by, [out] of a tensor's dtype and device; None is nothing."""
    if spec.multipliers is None:
        return None
    sizes = (spec.values_size, spec.values_size, spec.keys_size, spec.keys_size, spec.num_heads)
    parts = [like.new_full((size,), times) for size, times in zip(sizes, spec.multipliers, strict=True)]
    return torch.cat(parts)
