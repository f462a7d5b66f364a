"""The way of a step's tokens through recurrent layers: which go side by side, and which states they begin and end with.

A sequence's tokens follow one another from the state before the first of them. Where a block ends, and after the last
token that is sure, the state is written to the block that the token lies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Run", "StateArrays", "Strand", "strands_of"]


class StateArrays(NamedTuple):
    """A step's S sequences, on the device of their states. Tokens are numbered as in `Run`."""

    query_starts: Tensor
    """int32 [S + 1]: sequence s has the step's own tokens from query_starts[s] to query_starts[s + 1]."""
    context_lengths: Tensor
    """int32 [S], with the step's own tokens."""
    tables: Tensor
    """int32 [groups, S, max_blocks], of the groups of states."""
    block_size: int
    """Tokens of a block."""
    replay_starts: Tensor | None = None
    """int32 [S + 1], as `query_starts`: the tokens of earlier steps that each sequence takes in before its own."""
    unsure: Tensor | None = None
    """int32 [S]: how many of each sequence's own tokens, the last ones, no state takes in."""


class Run(NamedTuple):
    """Neighbouring tokens of sequences that lie in one block of each: as many of each."""

    tokens: Tensor
    """int64 [b, n], of the step's T, or from T on of those that are replayed."""
    blocks: Tensor | None
    """int64 [groups, b]: where the states after the last of them go; None is nowhere: they may be wrong."""


class Strand(NamedTuple):
    """Sequences that are computed side by side, run after run."""

    blocks: Tensor
    """int64 [groups, b]: where the states are that they begin with."""
    fresh: Tensor
    """bool [b, 1, 1]: sequences at their beginning, whose states are zero."""
    runs: tuple[Run, ...]


class _Sequence(NamedTuple):
    """Sequence of a step."""

    number: int
    first: int
    """Position of its first token in the step, replayed ones included."""
    tokens: list[int]
    """Its tokens in order, numbered as in `Run`."""
    num_sure: int
    """How many of them are sure, from the first on."""


def strands_of(arrays: StateArrays) -> tuple[Strand, ...]:
    """Return the strands of a step. Waits for the device.

    Sequences with one token, which is sure, are side by side. Each of the others is alone.
    """
    starts, contexts = arrays.query_starts.tolist(), arrays.context_lengths.tolist()
    nothing = [0] * (len(contexts) + 1)
    replays = nothing if arrays.replay_starts is None else arrays.replay_starts.tolist()
    unsure = nothing if arrays.unsure is None else arrays.unsure.tolist()
    sequences = []
    for number, context in enumerate(contexts):
        own = range(starts[number], starts[number + 1])
        if own:
            tokens = [*range(replays[number], replays[number + 1]), *own]
            sequences.append(_Sequence(number, context - len(tokens), tokens, len(tokens) - unsure[number]))
    alone = [one for one in sequences if len(one.tokens) > 1 or not one.num_sure]
    decodes = [one for one in sequences if len(one.tokens) == 1 and one.num_sure]
    strands = [_side_by_side(decodes, arrays)] if decodes else []
    return (*strands, *(_alone(one, arrays) for one in alone))


def _side_by_side(sequences: Sequence[_Sequence], arrays: StateArrays) -> Strand:
    """Return the strand of sequences with one token each."""
    tables, block_size = arrays.tables, arrays.block_size
    device = tables.device
    own = tables[:, torch.tensor([one.number for one in sequences], device=device)].long()
    columns = torch.tensor([one.first // block_size for one in sequences], device=device)
    before = torch.tensor([max(0, one.first - 1) // block_size for one in sequences], device=device)
    tokens = torch.tensor([one.tokens for one in sequences], device=device)
    fresh = torch.tensor([one.first == 0 for one in sequences], device=device)[:, None, None]
    every = torch.arange(len(sequences), device=device)
    return Strand(own[:, every, before], fresh, (Run(tokens, own[:, every, columns]),))


def _alone(sequence: _Sequence, arrays: StateArrays) -> Strand:
    """Return the strand of one sequence, cut where blocks end, and where tokens begin that may be wrong."""
    tables, block_size = arrays.tables, arrays.block_size
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
