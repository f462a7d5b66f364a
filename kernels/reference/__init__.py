"""The reference backend: plain torch on any device, right before it is fast."""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.base import HeadNorms
from pageant.kernels.quantized import quantize
from pageant.kernels.reference.attention import paged_attention
from pageant.kernels.reference.cache import move_kv, move_slots, write_kv
from pageant.kernels.reference.convolution import causal_conv
from pageant.kernels.reference.delta_rule import gated_delta_net
from pageant.kernels.reference.experts import (
    moe,
    route,
    route_by_sigmoid,
    route_in_groups,
    weigh_experts,
)
from pageant.kernels.reference.latents import multiply_heads
from pageant.kernels.reference.low_rank import add_low_rank
from pageant.kernels.reference.norms import (
    add_layer_norm,
    add_rms_norm,
    add_wide_rms_norm,
    layer_norm,
    rms_norm,
    wide_rms_norm,
)
from pageant.kernels.reference.pointwise import (
    clamped_swiglu,
    gather_columns,
    gelu,
    gelu_and_mul,
    rope,
    silu_and_mul,
)
from pageant.kernels.reference.products import embed, embed_share, linear, logits
from pageant.kernels.reference.sampling import mask_logits, sample, top_logprobs
from pageant.kernels.reference.state_space import state_space
from pageant.kernels.tiled import LinearWeight

__all__ = ["ReferenceKernels"]


class ReferenceKernels:
    """Implements `pageant.kernels.base.Kernels`, whose docstrings are the contract.

    A faster backend may inherit from it and replace function by function.
    """

    name = "reference"
    tiled_dtypes: frozenset[torch.dtype] = frozenset()
    quantized_tiles: frozenset[torch.dtype] = frozenset()
    halves: frozenset[torch.dtype] = frozenset()

    write_kv = staticmethod(write_kv)
    move_kv = staticmethod(move_kv)
    move_slots = staticmethod(move_slots)
    paged_attention = staticmethod(paged_attention)
    gated_delta_net = staticmethod(gated_delta_net)
    causal_conv = staticmethod(causal_conv)
    state_space = staticmethod(state_space)
    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    wide_rms_norm = staticmethod(wide_rms_norm)
    add_wide_rms_norm = staticmethod(add_wide_rms_norm)
    layer_norm = staticmethod(layer_norm)
    add_layer_norm = staticmethod(add_layer_norm)
    rope = staticmethod(rope)
    silu_and_mul = staticmethod(silu_and_mul)
    gelu_and_mul = staticmethod(gelu_and_mul)
    clamped_swiglu = staticmethod(clamped_swiglu)
    gelu = staticmethod(gelu)
    gather_columns = staticmethod(gather_columns)
    route = staticmethod(route)
    route_in_groups = staticmethod(route_in_groups)
    route_by_sigmoid = staticmethod(route_by_sigmoid)
    multiply_heads = staticmethod(multiply_heads)
    moe = staticmethod(moe)
    weigh_experts = staticmethod(weigh_experts)
    linear = staticmethod(linear)
    add_low_rank = staticmethod(add_low_rank)
    logits = staticmethod(logits)
    embed = staticmethod(embed)
    embed_share = staticmethod(embed_share)
    quantize = staticmethod(quantize)
    mask_logits = staticmethod(mask_logits)
    sample = staticmethod(sample)
    top_logprobs = staticmethod(top_logprobs)

    def gated_linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, activation: str) -> Tensor:
        """See `Kernels.gated_linear`."""
        return self.act_and_mul(self.linear(x, weight, bias), activation)

    def act_and_mul(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `Kernels.act_and_mul`."""
        if activation == "silu":
            return self.silu_and_mul(gate_up)
        if activation == "clamped_swiglu":
            return self.clamped_swiglu(gate_up)
        return self.gelu_and_mul(gate_up, tanh=activation == "gelu_tanh")

    def rope_and_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        norms: HeadNorms | None = None,
    ) -> None:
        """See `Kernels.rope_and_write_kv`."""
        if norms is not None:
            norm = self.wide_rms_norm if norms.wide else self.rms_norm
            query.copy_(norm(query, norms.query, norms.eps))
            key = norm(key, norms.key, norms.eps)
        if cos_sin_cache is not None:
            self.rope(query, key, cos_sin_cache, positions)
        self.write_kv(key, value, key_cache, value_cache, slots)

    def rope_and_write_latents(
        self,
        query: Tensor,
        latents: Tensor,
        weight: Tensor,
        eps: float,
        cos_sin_cache: Tensor | None,
        positions: Tensor,
        key_cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """See `Kernels.rope_and_write_latents`."""
        rank = len(weight)
        rotary = latents.shape[1] - rank
        turned = query.new_empty(*query.shape[:2], rotary + rank)
        turned[..., :rotary] = query[..., query.shape[2] - rotary :]
        latent = self.rms_norm(latents[:, :rank], weight, eps)
        key = torch.cat((latents[:, rank:], latent), dim=1)[:, None]
        if cos_sin_cache is not None:
            self.rope(turned, key, cos_sin_cache, positions)
        self.write_kv(key, key[..., :0], key_cache, key_cache[..., :0], slots)
        return turned
