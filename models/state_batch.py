"""The way of a step's tokens through recurrent layers: which go side by side, and which states they begin and end with.

A sequence's tokens follow one another from the state before the first of them. Where a block ends, and after the last
token that is sure, the state is written to the block that the token lies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pageant.kernels.base import AttentionBatch, StateRows
from pageant.kernels.states import KeptPlaces, Run, StateBatch, Strand

__all__ = ["make_state_batch"]


class _Sequence(NamedTuple):
    """Sequence of a step."""

    number: int
    first: int
    """Position of its first token in the step, replayed ones included."""
    tokens: list[int]
    """Its tokens in order, numbered as in `Run`."""
    num_sure: int
    """How many of them are sure, from the first on."""


def make_state_batch(batch: AttentionBatch, tables: Tensor, block_size: int) -> StateBatch:
    """Return the way of a step's tokens. tables: int32 [groups, S, max_blocks], of the groups of states.

    Sequences with one token, which is sure, are side by side. Each of the others is alone.
    """
    starts, contexts = batch.query_starts.tolist(), batch.context_lengths.tolist()
    count, states = len(contexts), batch.states
    replays, unsure = [0] * count, [0] * count
    if states is not None:
        replays, unsure = states.replayed.tolist(), states.unsure.tolist()
    behind = starts[-1]
    sequences = []
    for number in range(count):
        own = range(starts[number], starts[number + 1])
        if own:
            tokens = [*range(behind, behind + replays[number]), *own]
            behind += replays[number]
            first = contexts[number] - len(tokens)
            sequences.append(_Sequence(number, first, tokens, len(tokens) - unsure[number]))
    alone = [one for one in sequences if len(one.tokens) > 1 or not one.num_sure]
    decodes = [one for one in sequences if len(one.tokens) == 1 and one.num_sure]
    strands = [_side_by_side(decodes, tables, block_size)] if decodes else []
    strands += [_alone(one, tables, block_size) for one in alone]
    made = StateBatch(tuple(strands))
    return made if states is None else _with_kept(made, states, starts, tables.device)


def _with_kept(made: StateBatch, states: StateRows, starts: list[int], device: torch.device) -> StateBatch:
    """Return the same, with the tokens that are kept for their rows, and those that were."""
    if states.replayed.any():
        made = replace(made, replayed=_places(states.rows, states.replayed, device))
    if states.unsure.any():
        ends = np.array(starts[1:])
        tokens = [np.arange(end - count, end) for end, count in zip(ends, states.unsure, strict=True)]
        made = replace(
            made,
            unsure=_places(states.rows, states.unsure, device),
            unsure_tokens=torch.from_numpy(np.concatenate(tokens)).to(device),
        )
    return made


def _places(rows: np.ndarray, counts: np.ndarray, device: torch.device) -> KeptPlaces:
    within = np.concatenate([np.arange(count) for count in counts])
    return KeptPlaces(
        torch.from_numpy(np.repeat(rows, counts)).to(device), torch.from_numpy(within).to(device)
    )


def _side_by_side(sequences: Sequence[_Sequence], tables: Tensor, block_size: int) -> Strand:
    """Return the strand of sequences with one token each."""
    device = tables.device
    own = tables[:, torch.tensor([one.number for one in sequences], device=device)].long()
    columns = torch.tensor([one.first // block_size for one in sequences], device=device)
    before = torch.tensor([max(0, one.first - 1) // block_size for one in sequences], device=device)
    tokens = torch.tensor([one.tokens for one in sequences], device=device)
    fresh = torch.tensor([one.first == 0 for one in sequences], device=device)[:, None, None]
    every = torch.arange(len(sequences), device=device)
    return Strand(own[:, every, before], fresh, (Run(tokens, own[:, every, columns]),))


def _alone(sequence: _Sequence, tables: Tensor, block_size: int) -> Strand:
    """Return the strand of one sequence, cut where blocks end, and where tokens begin that may be wrong."""
    device, first = tables.device, sequence.first
    own = tables[:, sequence.number].long()[..., None]  # [groups, max_blocks, 1]
    tokens = torch.tensor(sequence.tokens, device=device)[None]
    runs, start = [], 0
    while start < sequence.num_sure:
        block = (first + start) // block_size
        stop = min(sequence.num_sure, (block + 1) * block_size - first)
        runs.append(Run(tokens[:, start:stop], own[:, block]))
        start = stop
    if start < len(sequence.tokens):
        runs.append(Run(tokens[:, start:], None))
    fresh = torch.tensor([[[first == 0]]], device=device)
    return Strand(own[:, max(0, first - 1) // block_size], fresh, tuple(runs))
