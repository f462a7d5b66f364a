"""The recurrence of Mamba-2 (Dao, Gu, 2024), token after token.

Each head keeps a matrix S, [key_dim, value_dim], float32. A token with values x, key B, decay g and time step d changes
it to S' = exp(g) S + B (d x)^T. Its query C reads S'^T C, to which a share of x is added.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pageant.kernels.states import StateBatch, StateMemory

__all__ = ["state_space"]


def state_space(
    mixed: Tensor, decay: Tensor, time_step: Tensor, skip: Tensor, memory: StateMemory, batch: StateBatch
) -> Tensor:
    """See `Kernels.state_space`."""
    read = torch.empty(len(mixed), memory.num_heads, memory.value_dim, device=mixed.device)
    for strand in batch.strands:
        matrices, _ = memory.read(strand.blocks)
        matrices.masked_fill_(strand.fresh[..., None], 0)
        for run in strand.runs:
            values, keys, queries = _heads(mixed[run.tokens], memory)
            factors, steps = decay[run.tokens].exp(), time_step[run.tokens]
            out = skip[:, None] * values
            for token in range(values.shape[1]):
                change = values[:, token] * steps[:, token, :, None]
                matrices *= factors[:, token, :, None, None]
                matrices += keys[:, token, :, :, None] * change[..., None, :]
                out[:, token] += (matrices * queries[:, token, :, :, None]).sum(-2)
            read[run.tokens] = out
            if run.blocks is not None:
                memory.write_matrices(run.blocks, matrices)
    return read


def _heads(mixed: Tensor, memory: StateMemory) -> tuple[Tensor, Tensor, Tensor]:
    """Return values [b, n, H, value_dim], and keys and queries of each head, [b, n, H, key_dim]; float32."""
    queries, keys, values = memory.sizes
    parts = mixed.float().split_with_sizes([values, keys, queries], dim=2)
    share = memory.num_heads // memory.num_key_heads
    shape = (*mixed.shape[:2], -1)
    key, query = (
        part.reshape(*shape, memory.key_dim).repeat_interleave(share, dim=2) for part in (parts[1], parts[2])
    )
    return parts[0].reshape(*shape, memory.value_dim), key, query
