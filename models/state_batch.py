"""The way of a step's tokens through recurrent layers, as kernels take it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, StateRows
from pageant.kernels.states import KeptPlaces, StateBatch
from pageant.kernels.strands import StateArrays

__all__ = ["make_state_batch"]


def make_state_batch(batch: AttentionBatch, tables: Tensor, block_size: int) -> StateBatch:
    """Return the way of a step's tokens. tables: int32 [groups, S, max_blocks], of the groups of states.

    Waits for the device only where drafts are replayed or verified.
    """
    states = batch.states
    arrays = StateArrays(batch.query_starts, batch.context_lengths, tables, block_size)
    if states is None or not (states.replayed.any() or states.unsure.any()):
        return StateBatch(arrays)
    starts = batch.query_starts.tolist()
    behind = starts[-1] + np.concatenate(([0], states.replayed.cumsum()))
    arrays = arrays._replace(
        replay_starts=torch.from_numpy(behind.astype(np.int32)).to(tables.device),
        unsure=torch.from_numpy(states.unsure.astype(np.int32)).to(tables.device),
    )
    return _with_kept(arrays, states, starts)


def _with_kept(arrays: StateArrays, states: StateRows, starts: list[int]) -> StateBatch:
    """Return the way of tokens, with those that are kept for their rows, and those that were."""
    device, replayed, unsure, unsure_tokens = arrays.tables.device, None, None, None
    if states.replayed.any():
        replayed = _places(states.rows, states.replayed, device)
    if states.unsure.any():
        ends = np.array(starts[1:])
        tokens = [np.arange(end - count, end) for end, count in zip(ends, states.unsure, strict=True)]
        unsure = _places(states.rows, states.unsure, device)
        unsure_tokens = torch.from_numpy(np.concatenate(tokens)).to(device)
    return StateBatch(arrays, replayed, unsure, unsure_tokens)


def _places(rows: np.ndarray, counts: np.ndarray, device: torch.device) -> KeptPlaces:
    within = np.concatenate([np.arange(count) for count in counts])
    return KeptPlaces(
        torch.from_numpy(np.repeat(rows, counts)).to(device), torch.from_numpy(within).to(device)
    )
