"""The gated delta rule (Yang et al., 2024), and the short convolution before it.

Each head keeps a matrix S, [key_dim, value_dim], float32. A token with key k, value v, decay g and strength b changes
it to S' = exp(g) S + k (b (v - exp(g) S^T k))^T, and its query q reads S'^T q. Keys and queries have length one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.reference.convolution import convolve
from pageant.kernels.states import StateBatch, StateMemory

__all__ = ["gated_delta_net", "gated_delta_rule", "unit_heads"]


def gated_delta_net(
    channels: Tensor, conv: Tensor, decay: Tensor, strength: Tensor, memory: StateMemory, batch: StateBatch
) -> Tensor:
    """See `Kernels.gated_delta_net`."""
    read = torch.empty(len(channels), memory.num_heads, memory.value_dim, device=channels.device)
    for strand in batch.strands:
        matrices, before = memory.read(strand.blocks)
        matrices.masked_fill_(strand.fresh[..., None], 0)
        before.masked_fill_(strand.fresh, 0)
        for run in strand.runs:
            inputs = torch.cat([before, channels[run.tokens]], dim=1)
            query, key, value = _heads(convolve(inputs, conv), memory)
            read[run.tokens] = gated_delta_rule(
                query, key, value, decay[run.tokens], strength[run.tokens], matrices
            )
            before = inputs[:, inputs.shape[1] - memory.kernel + 1 :]
            if run.blocks is not None:
                memory.write(run.blocks, matrices, before)
    return read


def _heads(mixed: Tensor, memory: StateMemory) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys, float32 [b, n, Hk, key_dim], and values [b, n, H, value_dim]."""
    query, key, value = mixed.split_with_sizes(memory.sizes, dim=2)
    of_keys, of_values = (*mixed.shape[:2], -1, memory.key_dim), (*mixed.shape[:2], -1, memory.value_dim)
    return (
        unit_heads(query.reshape(of_keys)),
        unit_heads(key.reshape(of_keys)),
        value.reshape(of_values).float(),
    )


def unit_heads(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Return heads [..., D], in float32, divided by their lengths."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor, state: Tensor
) -> Tensor:
    """Return what queries read, float32 [b, n, H, value_dim], token after token. Mutates the state.

    Each of b sequences has n tokens. query, key: float32 [b, n, Hk, key_dim], of length one. value: float32
    [b, n, H, value_dim]; H is a multiple of Hk, and so many neighbours share a key. decay: float32 [b, n, H],
    logarithms, at most 0. strength: float32 [b, n, H]. state: float32 [b, H, key_dim, value_dim].
    """
    group = value.shape[2] // key.shape[2]
    scale = query.shape[-1] ** -0.5
    factors = decay.exp()[..., None, None]
    read = torch.empty_like(value)
    for token in range(value.shape[1]):
        k = key[:, token].repeat_interleave(group, dim=1)[..., None]
        q = (query[:, token] * scale).repeat_interleave(group, dim=1)[..., None]
        state *= factors[:, token]
        known = (state * k).sum(-2)
        change = (value[:, token] - known) * strength[:, token, :, None]
        state += k * change[..., None, :]
        read[:, token] = (state * q).sum(-2)
    return read
