"""Gated DeltaNets: a step's tokens, and where their states are, as the C++ takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pageant.kernels.cpu.compiled import CompiledKernels
from pageant.kernels.states import StateBatch, StateMemory

__all__ = ["RecurrentKernels"]

Numbers = npt.NDArray[np.int64]


class _StrandArrays(NamedTuple):
    """The strands of a step as arrays, int64; see `delta_net.cpp`."""

    tokens: Numbers
    """[tokens], sequence by sequence."""
    sequences: Numbers
    """[S, 3 + groups]: the first run, the one behind the last, whether the states begin with zero, and their blocks."""
    runs: Numbers
    """[runs, 3 + groups]: first of the tokens, behind the last, whether the states are kept, and their blocks."""


class RecurrentKernels(CompiledKernels):
    """The `Kernels` of recurrent layers."""

    def gated_delta_net(
        self,
        channels: Tensor,
        conv: Tensor,
        decay: Tensor,
        strength: Tensor,
        memory: StateMemory,
        batch: StateBatch,
    ) -> Tensor:
        """See `Kernels.gated_delta_net`."""
        functions = self._functions.get(channels.dtype)
        if functions is None:
            return self._fall_back("gated_delta_net").gated_delta_net(
                channels, conv, decay, strength, memory, batch
            )
        arrays = batch.derived.get(_StrandArrays)
        if arrays is None:
            arrays = batch.derived[_StrandArrays] = _as_arrays(batch)
        parts = [(part.memory.data_ptr(), part.group, part.memory.stride(0)) for part in memory.pages]
        pages = np.array(parts, np.int64)
        taps, decay, strength = conv.contiguous(), decay.contiguous(), strength.contiguous()
        heads, width = memory.num_heads, memory.value_dim
        read = self._empty(decay.dtype, len(channels), heads * width)
        functions.gated_delta_net(
            *(
                channels.data_ptr(),
                channels.stride(0),
                taps.data_ptr(),
                decay.data_ptr(),
                strength.data_ptr(),
            ),
            *(read.data_ptr(), pages.ctypes.data, memory.pages[0].memory.shape[1]),
            *(
                arrays.tokens.ctypes.data,
                arrays.sequences.ctypes.data,
                len(arrays.sequences),
                arrays.runs.ctypes.data,
            ),
            *(arrays.runs.shape[1] - 3, memory.num_key_heads, heads, memory.key_dim, width, memory.kernel),
        )
        return read.view(-1, heads, width)


def _as_arrays(batch: StateBatch) -> _StrandArrays:
    tokens: list[int] = []
    sequences: list[list[int]] = []
    runs: list[list[int]] = []
    for strand in batch.strands:
        nowhere = [0] * len(strand.blocks)
        fresh, before = strand.fresh.flatten().tolist(), strand.blocks.T.tolist()
        each = [
            (run.tokens.tolist(), None if run.blocks is None else run.blocks.T.tolist())
            for run in strand.runs
        ]
        for number, (new, blocks) in enumerate(zip(fresh, before, strict=True)):
            sequences.append([len(runs), len(runs) + len(each), new, *blocks])
            for own, kept in each:
                first = len(tokens)
                tokens += own[number]
                places = nowhere if kept is None else kept[number]
                runs.append([first, len(tokens), kept is not None, *places])
    width = len(runs[0]) if runs else 3
    return _StrandArrays(
        np.array(tokens, np.int64),
        np.array(sequences, np.int64).reshape(-1, width),
        np.array(runs, np.int64).reshape(-1, width),
    )
