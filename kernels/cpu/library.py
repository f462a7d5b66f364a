"""The compiled library as Python functions."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pageant.kernels.cpu.build import BadLevel, BuildError, build
from pageant.kernels.cpu.functions import OPTIONAL, SIGNATURES, TYPES
from pageant.kernels.cpu.levels import levels_here

if TYPE_CHECKING:
    from ctypes import _NamedFuncPointer as Function

__all__ = ["Functions", "GroupFunctions", "Library", "load_library"]

log = logging.getLogger("pageant.kernels")

_GROUP = "group_"


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
        if not _function(self._library, "allowed")():
            raise BadLevel(f"the system does not let this process use what the {level} kernels are made of")
        self.f32, self.bf16, self.f16 = (Functions(self._library, suffix) for suffix in TYPES)
        for name, signature in SIGNATURES.items():
            if not signature.suffixes and not name.startswith(_GROUP):
                setattr(self, name, _function(self._library, name))
        self.uses_unit = bool(_function(self._library, "by_unit")())
        """Products of bfloat16 use a matrix unit's tiles."""
        self.group: GroupFunctions | None = None  # on Linux
        if hasattr(self._library, "pageant_group_join"):
            self.group = GroupFunctions(self._library)
        _follow_torch(self.use_threads)

    tiled_linear: Function | None
    """A product of bfloat16 with weights in tiles, where there is one."""
    gated_linear: Function | None
    quantized_gated_linear: Function | None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Function: ...

    def thread_count(self) -> int:
        """Return how many threads a call from this thread uses."""
        return int(self.threads())


class Functions:
    """The functions for one type of numbers, as attributes."""

    def __init__(self, library: ctypes.CDLL, suffix: str) -> None:
        for name, signature in SIGNATURES.items():
            if signature.suffixes:
                found = _function(library, name, suffix) if suffix in signature.suffixes else None
                setattr(self, name.removesuffix("_T"), found)
        self.takes_quantized_tiles = bool(self.takes_tiles())
        """Products take quantised weights in tiles."""

    screen: Function | None
    """Bounds of logits, where products take weights of 8 bits in halves, too."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Function: ...


class GroupFunctions:
    """The functions of groups of ranks that share memory, as attributes; `pageant.kernels.collectives` calls them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in SIGNATURES:
            if name.startswith(_GROUP):
                setattr(self, name.removeprefix(_GROUP), _function(library, name))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Function: ...


def _function(library: ctypes.CDLL, name: str, suffix: str = "") -> Any:
    """Return a function of the table, for one type of numbers; None if it is optional and not in this library."""
    exported = f"pageant_{name.removesuffix('T')}{suffix}" if suffix else f"pageant_{name}"
    if name in OPTIONAL and not hasattr(library, exported):
        return None
    function = library[exported]
    function.argtypes, function.restype = SIGNATURES[name].argtypes(), SIGNATURES[name].restype()
    return function


def _follow_torch(use_threads: Function) -> None:
    """Let torch.set_num_threads decide how many threads a call uses: it is OpenMP's count for each thread."""
    for path in _openmp_runtimes():
        runtime = ctypes.CDLL(path)
        if hasattr(runtime, "omp_get_max_threads"):
            use_threads(ctypes.cast(runtime.omp_get_max_threads, ctypes.c_void_p))
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
