"""Recurrent layers: a step's tokens, and where their states are, as the C++ takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.kernels.cpu.compiled import CompiledKernels
from pageant.kernels.states import StateBatch, StateMemory

__all__ = ["RecurrentKernels"]

Numbers = npt.NDArray[np.int64]


class _StrandArrays(NamedTuple):
    """The strands of a step as arrays, int64; see `states.h`."""

    tokens: Numbers
    """[tokens], sequence by sequence."""
    sequences: Numbers
    """[S, 3 + groups]: the first run, the one behind the last, whether the states begin with zero, and their blocks."""
    runs: Numbers
    """[runs, 3 + groups]: first of the tokens, behind the last, whether the states are kept, and their blocks."""

    def addresses(self) -> tuple[int, int, int, int, int]:
        """Return where the arrays are, how many sequences there are, and how many groups of states."""
        tokens, sequences, runs = (array.ctypes.data for array in self)
        return tokens, sequences, len(self.sequences), runs, self.runs.shape[1] - 3


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
        pages = _pages(memory)
        taps, decay, strength = conv.contiguous(), decay.contiguous(), strength.contiguous()
        heads, width = memory.num_heads, memory.value_dim
        read = self._empty(decay.dtype, len(channels), heads * width)
        functions.gated_delta_net(
            *(channels.data_ptr(), channels.stride(0), taps.data_ptr()),
            *(decay.data_ptr(), strength.data_ptr(), read.data_ptr()),
            *(pages.ctypes.data, memory.pages[0].memory.shape[1]),
            *_arrays(batch).addresses(),
            *(memory.num_key_heads, heads, memory.key_dim, width, memory.kernel),
        )
        return read.view(-1, heads, width)

    def causal_conv(
        self,
        channels: Tensor,
        conv: Tensor,
        bias: Tensor | None,
        memory: StateMemory,
        batch: StateBatch,
        *,
        activated: bool,
    ) -> Tensor:
        """See `Kernels.causal_conv`."""
        functions = self._functions.get(channels.dtype)
        if functions is None:
            return self._fall_back("causal_conv").causal_conv(
                channels, conv, bias, memory, batch, activated=activated
            )
        pages, taps = _pages(memory), conv.contiguous()
        mixed = self._empty(channels.dtype, len(channels), memory.num_channels)
        matrix_bytes = 4 * memory.num_heads * memory.key_dim * memory.value_dim
        functions.causal_conv(
            *(channels.data_ptr(), channels.stride(0), taps.data_ptr()),
            *(0 if bias is None else bias.data_ptr(), int(activated), mixed.data_ptr()),
            *(pages.ctypes.data, memory.pages[0].memory.shape[1], matrix_bytes),
            *_arrays(batch).addresses(),
            *(memory.num_channels, memory.kernel),
        )
        return mixed

    def state_space(
        self,
        mixed: Tensor,
        decay: Tensor,
        time_step: Tensor,
        skip: Tensor,
        memory: StateMemory,
        batch: StateBatch,
    ) -> Tensor:
        """See `Kernels.state_space`."""
        functions = self._functions.get(mixed.dtype)
        if functions is None:
            return self._fall_back("state_space").state_space(mixed, decay, time_step, skip, memory, batch)
        pages, heads, width = _pages(memory), memory.num_heads, memory.value_dim
        decay, time_step = decay.contiguous(), time_step.contiguous()
        read = self._empty(torch.float32, len(mixed), heads * width)
        functions.state_space(
            *(mixed.data_ptr(), mixed.stride(0), decay.data_ptr(), time_step.data_ptr(), skip.data_ptr()),
            *(read.data_ptr(), pages.ctypes.data, memory.pages[0].memory.shape[1]),
            *_arrays(batch).addresses(),
            *(memory.num_key_heads, heads, memory.key_dim, width),
        )
        return read.view(-1, heads, width)


def _pages(memory: StateMemory) -> Numbers:
    """Return where each page's memory is, its group, and the bytes from a block to the next: int64 [pages, 3]."""
    parts = [(part.memory.data_ptr(), part.group, part.memory.stride(0)) for part in memory.pages]
    return np.array(parts, np.int64)


def _arrays(batch: StateBatch) -> _StrandArrays:
    """Return the step's strands, which all layers share."""
    arrays: _StrandArrays | None = batch.derived.get(_StrandArrays)
    if arrays is None:
        arrays = batch.derived[_StrandArrays] = _as_arrays(batch)
    return arrays


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
