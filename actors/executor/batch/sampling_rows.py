"""Sampling parameters of the batch's rows, by columns."""

from __future__ import annotations

import numpy as np

from pageant.actors.executor.batch.inputs import Int32, Int64, SamplingColumns
from pageant.actors.executor.batch.shaping import Shaping
from pageant.protocol.stepping import NewSequence

__all__ = ["SamplingRows"]


class SamplingRows:
    """Columns with one entry per row of the batch. Entries of rows without a sequence mean nothing."""

    def __init__(self, max_num_seqs: int) -> None:
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seed = np.zeros(max_num_seqs, np.int64)
        self._sample = np.zeros(max_num_seqs, np.int32)

    def admit(self, sequence: NewSequence) -> None:
        """Note the parameters of a new sequence."""
        row, params = sequence.row, sequence.params
        self._temperature[row] = params.temperature
        self._top_k[row] = max(params.top_k, 0)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = params.seed or 0
        self._sample[row] = sequence.sample

    def of_step(self, rows: Int32, positions: Int64, shaping: Shaping) -> SamplingColumns:
        """Return the parameters of a step's drawing rows, int32 [D], which draw tokens for `positions`, int64 [D]."""
        return SamplingColumns(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seed=self._seed[rows],
            sample=self._sample[rows],
            position=positions,
            shaping=shaping,
        )
