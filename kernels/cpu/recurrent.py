"""Recurrent layers: a step's tokens, and where their states are, as the C++ takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.kernels.cpu.compiled import CompiledKernels
from pageant.kernels.states import StateBatch, StateMemory
from pageant.kernels.strands import StateArrays

__all__ = ["RecurrentKernels"]

_PAGES = "cpu pages"
"""What a `StateMemory` keeps for these kernels; recordings have the address."""


class _Strands(NamedTuple):
    """The strands of a step as arrays, int64; see `states.h`."""

    tokens: Tensor
    """[T], sequence by sequence."""
    sequences: Tensor
    """[S, 3 + groups]: the first run, the one behind the last, whether the states begin with zero, and their blocks."""
    runs: Tensor
    """[T + S, 3 + groups] at most: first of the tokens, behind the last, whether the states are kept, their blocks."""

    def addresses(self) -> tuple[int, int, int, int, int]:
        """Return where the arrays are, how many sequences there are, and how many groups of states."""
        tokens, sequences, runs = (array.data_ptr() for array in self)
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
            *self._strands(batch, len(channels)).addresses(),
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
            *self._strands(batch, len(channels)).addresses(),
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
            *self._strands(batch, len(mixed)).addresses(),
            *(memory.num_key_heads, heads, memory.key_dim, width),
        )
        return read.view(-1, heads, width)

    def _strands(self, batch: StateBatch, num_tokens: int) -> _Strands:
        """Return the way of a step's tokens, replayed ones included, which all layers share."""
        strands: _Strands | None = batch.derived.get(_Strands)
        if strands is None:
            strands = batch.derived[_Strands] = self._make_strands(batch.arrays, num_tokens)
        return strands

    def _make_strands(self, arrays: StateArrays, num_tokens: int) -> _Strands:
        tables, count = arrays.tables, len(arrays.context_lengths)
        width = 3 + len(tables)
        made = _Strands(
            *(
                torch.empty(shape, dtype=torch.int64)
                for shape in ((num_tokens,), (count, width), (num_tokens + count, width))
            )
        )
        behind, unsure = arrays.replay_starts, arrays.unsure
        self._library.strands(
            *(arrays.query_starts.data_ptr(), arrays.context_lengths.data_ptr(), count),
            *(tables.data_ptr(), tables.stride(0), tables.stride(1), len(tables), arrays.block_size),
            *(0 if behind is None else behind.data_ptr(), 0 if unsure is None else unsure.data_ptr()),
            *(array.data_ptr() for array in made),
        )
        return made


def _pages(memory: StateMemory) -> npt.NDArray[np.int64]:
    """Return where each page's memory is, its group, and the bytes from a block to the next: int64 [pages, 3]."""
    if _PAGES not in memory.derived:
        parts = [(part.memory.data_ptr(), part.group, part.memory.stride(0)) for part in memory.pages]
        memory.derived[_PAGES] = np.array(parts, np.int64)
    pages: npt.NDArray[np.int64] = memory.derived[_PAGES]
    return pages
