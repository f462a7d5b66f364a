"""Small steps on a CPU as recorded calls of kernels, made again without Python between them.

A recording is bound to how many tokens and sequences a step has, and to where its inputs are; so inputs are copied
to where all recordings read them. What the tokens are, and how many belong to which sequence, is free. A step is
recorded when one of its shape comes for the second time: a prompt's last chunk is seldom as long as another's.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch import Packed
from pageant.actors.executor.graphs import Capture, Forward
from pageant.kernels.base import AttentionBatch

__all__ = ["StepPrograms"]

log = logging.getLogger("pageant.executor")

_TOKENS_MAX = 512  # of a step; beyond, what Python costs is nothing beside what is computed
_PROGRAMS_MAX = 512  # some tens of kilobytes each


@dataclass
class _Shape:
    """Steps of so many tokens and sequences, with trees of drafts or without."""

    replay: Callable[[], Tensor] | None = None
    refused: bool = False


class StepPrograms:
    """Computes the hidden states of small steps.

    Args:
        capture: makes a call into something that can be played again; RuntimeError where it cannot, and then
            steps of that shape are computed without.
    """

    def __init__(
        self,
        forward: Forward,
        capture: Capture,
        *,
        num_groups: int,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
    ) -> None:
        self._forward = forward
        self._capture = capture
        self._seqs_max = max_num_seqs
        self._shapes: OrderedDict[tuple[int, int, bool], _Shape] = OrderedDict()
        self._token_ids, self._positions, self._ancestors = (
            torch.zeros(_TOKENS_MAX, dtype=torch.int64) for _ in range(3)
        )
        self._slots = torch.zeros(num_groups, _TOKENS_MAX, dtype=torch.int64)
        blocks = -(-max_model_len // block_size)
        self._starts = torch.zeros(max_num_seqs + 1, dtype=torch.int32)
        self._lengths = torch.zeros(max_num_seqs, dtype=torch.int32)
        self._tables = torch.zeros(num_groups, max_num_seqs, blocks, dtype=torch.int32)
        self._inputs = [
            part.numpy()
            for part in (
                self._token_ids,
                self._positions,
                self._slots,
                self._starts,
                self._lengths,
                self._tables,
            )
        ]

    @property
    def num_recorded(self) -> int:
        """How many recordings there are."""
        return sum(shape.replay is not None for shape in self._shapes.values())

    def run(
        self, inputs: Packed, last_drawn: Tensor, ancestors: npt.NDArray[np.int64] | None = None
    ) -> Tensor | None:
        """Return hidden states [T, hidden_size], good until the next call, or None where it is not for this.

        Args:
            last_drawn: int64 [rows of the batch], the token that each drew last.
            ancestors: [T], see `AttentionBatch`.
        """
        tokens, sequences = len(inputs.positions), len(inputs.context_lengths)
        if tokens > _TOKENS_MAX or sequences > self._seqs_max:
            return None
        key = tokens, sequences, ancestors is not None
        shape = self._shapes.get(key)
        if shape is None:
            self._shapes[key] = _Shape()
            if len(self._shapes) > _PROGRAMS_MAX:
                self._shapes.popitem(last=False)
            return None
        self._shapes.move_to_end(key)
        if shape.refused:
            return None
        self._write(inputs, last_drawn)
        if ancestors is not None:
            self._ancestors[:tokens] = torch.from_numpy(ancestors)
        if shape.replay is not None:
            return shape.replay()
        return self._record(shape, inputs, with_trees=ancestors is not None)

    def _record(self, shape: _Shape, inputs: Packed, *, with_trees: bool) -> Tensor | None:
        tokens, sequences = len(inputs.positions), len(inputs.context_lengths)
        positions = self._positions[:tokens]
        batch = AttentionBatch.of_groups(
            self._tables[:, :sequences],
            self._slots[:, :tokens],
            query_starts=self._starts[: sequences + 1],
            context_lengths=self._lengths[:sequences],
            positions=positions,
            max_query_length=inputs.max_query_length,
            max_context_length=inputs.max_context_length,
            ancestors=self._ancestors[:tokens] if with_trees else None,
        )
        try:
            shape.replay = self._capture(lambda: self._forward(self._token_ids[:tokens], positions, batch))
        except RuntimeError as error:
            log.debug("steps of %d tokens are not recorded: %s", tokens, error)
            shape.refused = True
            return None
        return shape.replay()

    def _write(self, inputs: Packed, last_drawn: Tensor) -> None:
        token_ids, positions, slots, starts, lengths, tables = self._inputs
        tokens, (_, sequences, width) = len(inputs.positions), inputs.block_tables.shape
        token_ids[:tokens] = inputs.token_ids
        if len(inputs.unknown):
            token_ids[inputs.unknown] = last_drawn.numpy()[inputs.unknown_rows]
        positions[:tokens] = inputs.positions
        slots[:, :tokens] = inputs.slots
        starts[: sequences + 1] = inputs.query_starts
        lengths[:sequences] = inputs.context_lengths
        tables[:, :sequences, :width] = inputs.block_tables
