"""The compiled library as Python functions."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pageant.kernels.cpu.build import BadLevel, BuildError, build
from pageant.kernels.cpu.levels import levels_here

if TYPE_CHECKING:
    from ctypes import _NamedFuncPointer as Function

__all__ = ["Functions", "GroupFunctions", "Library", "load_library"]

log = logging.getLogger("pageant.kernels")

# Integers are passed as pointers, which ctypes converts in half the time. The supported ABIs pass both in the same way.
_WORD, _REAL = ctypes.c_void_p, ctypes.c_double
_TYPED: dict[str, list[Any]] = {
    "linear": [_WORD] * 11,
    "quantized_linear": [_WORD] * 15,
    "add_low_rank": [_WORD] * 7,
    "embed": [_WORD] * 9,
    "gather_columns": [_WORD] * 6,
    "quantize": [_WORD] * 8,
    "attention": [_WORD] * 20 + [_REAL] * 2,
    **{name: [_WORD] * 8 + [_REAL] for name in ("rms_norm", "wide_rms_norm", "layer_norm")},
    **{name: [_WORD] * 11 + [_REAL] for name in ("add_rms_norm", "add_wide_rms_norm", "add_layer_norm")},
    **{f"{name}{mul}": [_WORD] * 6 for name in ("silu", "gelu", "gelu_tanh") for mul in ("", "_and_mul")},
    "clamped_swiglu": [_WORD] * 6,
    "rope_and_write_kv": [_WORD] * 21 + [_REAL],
    "moe": [_WORD] * 21,
    "weigh_experts": [_WORD] * 6,
    "route": [_WORD] * 8,
}
# Functions of a group of ranks, with what they return.
_OF_GROUPS: dict[str, tuple[list[Any], Any]] = {
    "bytes": ([_WORD] * 3, ctypes.c_int64),
    "lay_out": ([_WORD] * 5, ctypes.c_int64),
    "join": ([_WORD] * 7, ctypes.c_void_p),
    "watch": ([_WORD] * 2, None),
    "abort": ([_WORD, _WORD, ctypes.c_char_p], None),
    "close": ([_WORD, ctypes.c_char_p], None),
    "reason": ([_WORD] * 2, ctypes.c_char_p),
    "all_reduce": ([_WORD] * 9, ctypes.c_int64),
    "broadcast": ([_WORD] * 4, ctypes.c_int64),
    "gather": ([_WORD] * 5, ctypes.c_int64),
    "all_to_all": ([_WORD] * 5, ctypes.c_int64),
    "barrier": ([_WORD], ctypes.c_int64),
    "send": ([_WORD] * 4, ctypes.c_int64),
    "receive": ([_WORD] * 4, ctypes.c_int64),
}


class Library:
    """The functions of one compiled library. Calls release the GIL.

    A function for numbers of one type is an attribute of `f32`, `bf16` or `f16`, as in `library.bf16.linear`.

    Raises BadLevel if the system does not let this process use the level's registers, and BuildError if it does
    not let it load the library.
    """

    def __init__(self, path: Path, level: str) -> None:
        self.path = path
        self.level = level
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(
                f"{path} cannot be loaded ({error}): set PAGEANT_CACHE to a folder that may hold programs"
            ) from error
        # Each process needs the permission itself: without it the first use of a tile ends it, whatever a trial found.
        if not self._library.pageant_allowed():
            raise BadLevel(f"the system does not let this process use what the {level} kernels are made of")
        self.f32 = Functions(self._library, "f32")
        self.bf16 = Functions(self._library, "bf16")
        self.f16 = Functions(self._library, "f16")
        self.sample = _function(self._library, "sample", [_WORD] * 16)
        self.mask_logits = _function(self._library, "mask_logits", [_WORD] * 7)
        self.top_logprobs = _function(self._library, "top_logprobs", [_WORD] * 10)
        self.move_blocks = _function(self._library, "move_blocks", [_WORD] * 6)
        self.gather_rows = _function(self._library, "gather_rows", [_WORD] * 5)
        self.gather_tiled_rows = _function(self._library, "gather_tiled_rows", [_WORD] * 5)
        self.tiled_linear: Function | None = None  # of bfloat16, where such products take weights in tiles
        if hasattr(self._library, "pageant_tiled_linear"):
            self.tiled_linear = _function(self._library, "tiled_linear", [_WORD] * 10)
        self.gated_linear: Function | None = None  # the same for these two
        if hasattr(self._library, "pageant_gated_linear"):
            self.gated_linear = _function(self._library, "gated_linear", [_WORD] * 10)
        self.quantized_gated_linear: Function | None = None
        if hasattr(self._library, "pageant_quantized_gated_linear"):
            self.quantized_gated_linear = _function(self._library, "quantized_gated_linear", [_WORD] * 12)
        self.by_unit = bool(self._library.pageant_by_unit())
        """Products of bfloat16 use a matrix unit's tiles."""
        self.gate = _function(self._library, "gate", [_WORD] * 7)
        self.narrow = _function(self._library, "narrow", [_WORD] * 17)
        self.narrow_rest = _function(self._library, "narrow_rest", [_WORD] * 15)
        self.replay = _function(self._library, "replay", [_WORD] * 2)
        self.group: GroupFunctions | None = None  # on Linux
        if hasattr(self._library, "pageant_group_join"):
            self.group = GroupFunctions(self._library)
        self._threads = self._library.pageant_threads
        self._threads.restype = ctypes.c_int64
        _follow_torch(self._library)

    def thread_count(self) -> int:
        """Return how many threads a call from this thread uses."""
        return int(self._threads())


class Functions:
    """The functions for one type of numbers, as attributes."""

    def __init__(self, library: ctypes.CDLL, suffix: str) -> None:
        for name, types in _TYPED.items():
            setattr(self, name, _function(library, f"{name}_{suffix}", types))
        self.takes_tiles = bool(library[f"pageant_takes_tiles_{suffix}"]())
        """Products take quantised weights in tiles."""
        self.screen: Function | None = None  # where products take such of 8 bits in halves, too
        if hasattr(library, f"pageant_screen_{suffix}"):
            self.screen = _function(library, f"screen_{suffix}", [_WORD] * 15)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Function: ...


class GroupFunctions:
    """The functions of groups of ranks that share memory, as attributes; `pageant.kernels.collectives` calls them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (types, returned) in _OF_GROUPS.items():
            function: Function = library[f"pageant_group_{name}"]
            function.argtypes, function.restype = types, returned
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Function: ...


def _function(library: ctypes.CDLL, name: str, types: list[Any]) -> Function:
    function: Function = library[f"pageant_{name}"]
    function.argtypes = types
    function.restype = None
    return function


def _follow_torch(library: ctypes.CDLL) -> None:
    """Let torch.set_num_threads decide how many threads a call uses: it is OpenMP's count for each thread."""
    for path in _openmp_runtimes():
        runtime = ctypes.CDLL(path)
        if hasattr(runtime, "omp_get_max_threads"):
            library.pageant_use_threads(ctypes.cast(runtime.omp_get_max_threads, ctypes.c_void_p))
            return


def _openmp_runtimes() -> list[str]:
    """Return the OpenMP libraries in this process, torch's own first."""
    import torch  # noqa: F401 - which loads them

    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    files = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    known = ("libgomp", "libomp", "libiomp5")
    found = [file for file in files if Path(file).name.startswith(known)]
    return sorted(found, key=lambda file: ("torch" not in file, file))


@functools.cache
def load_library(level: str | None = None) -> Library:
    """Return the library for an instruction set, the best there is by default; compiled at most once.

    Raises pageant.kernels.cpu.build.BuildError.
    """
    if level is not None:
        return Library(build(level), level)
    *tried, last = levels_here()
    for better in tried:
        try:
            return Library(build(better), better)
        except BadLevel as error:
            log.warning("%s", error)
    return Library(build(last), last)
