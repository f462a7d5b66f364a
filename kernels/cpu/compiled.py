"""Base of the CPU backend: the compiled library, memory for results, and recordings."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from pageant.kernels.cpu.arena import Arena
from pageant.kernels.cpu.choices import ROWS_ALIKE, ROWS_OWN_MAX
from pageant.kernels.cpu.copying import copier
from pageant.kernels.cpu.library import Functions, Library, load_library
from pageant.kernels.cpu.recording import (
    NotRecordable,
    RecordedLibrary,
    Recorder,
    noting,
    playback,
)
from pageant.kernels.reference import ReferenceKernels

__all__ = ["ACTIVATIONS", "CompiledKernels"]

log = logging.getLogger("pageant.kernels")

# The library's numbers of activations.
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "clamped_swiglu": 3, "relu2": 4}

_ALL = 1 << 62
# Results with so many numbers or more are in memory that is reused.
_LARGE = 1 << 18
# Bytes of a cache line.
_LINE = 64
# Rows of x in a tile.
_TILE_ROWS = 16
_EMPTY = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
# Functions of the reference that are operations of torch alone, whatever is in their tensors.
_BLIND = frozenset({"route_by_sigmoid", "route_in_groups"})
# With more rows than these, the activation is fused into a product that uses no matrix unit. Fewer rows have faster
# kernels.
_GATED_MORE, _QUANTIZED_GATED_MORE = 8, 80


class CompiledKernels:
    """State that all parts of the CPU backend share: the library of a level, memory for results, and fallbacks.

    The level is the best one of this machine, unless it is named.

    Raises BuildError where the library can be neither found nor compiled.
    """

    def __init__(self, level: str | None = None, *, deterministic: bool = False) -> None:
        self._library = load_library(level)
        self.level = self._library.level
        self.copy_parts = copier(self._library)
        """See `pageant.kernels.host_copies`."""
        self._functions = _functions(self._library)
        self._arena = Arena(lasting=True)
        self._large: Arena | None = Arena(lasting=False)
        own_max = {} if deterministic else ROWS_OWN_MAX.get(self.level, {})
        self.rows_own_max = {
            torch.float32: own_max.get("f32", _ALL),
            torch.bfloat16: own_max.get("bf16", _ALL),
            torch.float16: own_max.get("f16", _ALL),
        }
        self.rows_alike = _ALL if deterministic else ROWS_ALIKE
        by_unit = self._library.uses_unit
        self.gated_more, self.quantized_gated_more = _ALL, _ALL
        if self._library.gated_linear:
            self.gated_more = 0 if by_unit else _GATED_MORE
        if self._library.quantized_gated_linear:
            self.quantized_gated_more = self.rows_alike if by_unit else _QUANTIZED_GATED_MORE
        self.tiled_dtypes = frozenset({torch.bfloat16} if self._library.tiled_linear else ())
        self.unit_dtypes = frozenset({torch.bfloat16} if by_unit else ())
        """Dtypes whose products use a matrix unit's tiles."""
        takers = (dtype for dtype, functions in self._functions.items() if functions.takes_quantized_tiles)
        self.quantized_tiles = frozenset(takers)
        self.halves = frozenset(dtype for dtype, functions in self._functions.items() if functions.screen)

        self._reference = ReferenceKernels()
        self.fallbacks: Counter[str] = Counter()
        """Calls that the reference computed, by function, since the C++ has none for their case."""

    def _fall_back(self, function: str) -> ReferenceKernels:
        """Return the reference, for a call of `function` that the C++ cannot compute. Counts it, and logs the first.

        Raises NotRecordable during a recording, where the reference may look at what a step's tensors hold.
        """
        if self._large is None and function not in _BLIND:
            raise NotRecordable(f"the reference computes {function}")
        if not self.fallbacks[function]:
            log.info("the reference computes some calls of %s, which is slower", function)
        self.fallbacks[function] += 1
        return self._reference

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Call `run` and record its kernel calls, and what torch computes between them. Return the function that
        repeats them in the same memory.

        All recordings share memory for intermediate results, and so does what each returns, [...] of any dtype:
        valid until the next call. Not to be called while another thread uses these kernels.

        Raises NotRecordable (a RuntimeError) if something is computed that cannot be made again.
        """
        library, functions, large = self._library, self._functions, self._large
        recorded = RecordedLibrary(library)
        self._library = cast(Library, recorded)
        self._functions = _functions(self._library)
        self._large = None
        try:
            with Recorder(self._arena, recorded.calls, library.stop_replay), noting(recorded.calls):
                result = run()
        finally:
            self._library, self._functions, self._large = library, functions, large
        play = playback(library, recorded.calls)

        def again() -> Tensor:
            play()
            return result

        return again

    def _empty(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """Return memory for a result."""
        if self._large is None or rows * columns < _LARGE:
            return _EMPTY[dtype].new_empty(rows, columns)
        return self._large.empty((rows, columns), dtype)

    def _empty_padded(self, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
        """Return memory for a factor. Its rows do not share sets of the caches, where tiles read many at once."""
        line = _LINE // dtype.itemsize
        if rows <= _TILE_ROWS or columns % (2 * line) != 0 or dtype not in self.unit_dtypes:
            return self._empty(dtype, rows, columns)
        return self._empty(dtype, rows, columns + line)[:, :columns]


def _functions(library: Library) -> dict[torch.dtype, Functions]:
    return {torch.float32: library.f32, torch.bfloat16: library.bf16, torch.float16: library.f16}
