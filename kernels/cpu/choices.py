"""The kernel of every product with a weight: one table of instruction level, weight layout, dtype of x and rows.

`csrc/gemm/kernel_choice.h` makes these choices while it is compiled. The table says the same in one place, in C++ types
that a test has the compiler compare with that header's (`checks_of`), for every level.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pageant.kernels.cpu.functions import TYPES

__all__ = ["LAYOUTS", "ROWS_ALIKE", "ROWS_OWN_MAX", "Choice", "checks_of", "choices_of"]

_BITS = (8, 5, 4)
LAYOUTS = (
    "rows",
    "tiles",
    *(f"{bits} bits in {kind}" for bits in _BITS for kind in ("rows", "tiles")),
    "halves",
)
"""Layouts of weights: row-major in the dtype of x, in tiles, quantised so, and of 8 bits in halves."""

ROWS_ALIKE = 80
"""Quantised products of bfloat16 with more rows are by tiles of unpacked weights, on the level `amx`."""
ROWS_OWN_MAX = {"avx2": {"f32": 32}, "portable": {"f32": 4, "bf16": 4}}
"""The most rows of x that products with row-major weights are computed for here: torch is faster for more, as measured
on a Zen 4 (scripts/bench/kernels). Levels and dtypes that are not listed compute all of them.
"""

_EITHER = "FewOrMany<"
_NAMES = {
    "Streamed": "dot products of rows",
    "Unpacked": "rows unpacked to numbers",
    "UnpackedLanes": "panels unpacked to bfloat16",
    "BfloatPanel": "vectors, a panel of rows at a time",
    "TiledBfloatPanel": "vectors, packed panels",
    "BytePanel": "vectors of bytes, x rounded to 8 bits",
    "TilesOrHalves": "vectors of bytes, packed panels",
    "LanesOrTiles": "vectors or tiles of bytes, packed panels",
    "Lying": "AMX tiles, rows packed on the way",
    "Panels": "AMX tiles, packed panels",
    "UnpackedTiles": "AMX tiles of bfloat16, rows unpacked",
    "UnpackedPanels": "AMX tiles of bfloat16, panels unpacked",
}

# By family of levels: the C++ type for each layout and dtype. B stands for the bits, T for the dtype. A layout that is
# not named is taken as row-major.
_PLAIN = {"rows": "Streamed<T>", "q rows": "Unpacked<B, T>"}
_VECTORS = {
    "rows bf16": "Lanes<BfloatPanel<BestPairs>, bf16>",
    "tiles bf16": "Lanes<TiledBfloatPanel<BestPairs>, bf16>",
}
_BYTES = {
    **{f"q rows {dtype}": "Lanes<BytePanel<B>, T>" for dtype in ("bf16", "f16")},
    **{f"q tiles {dtype}": "Lanes<TilesOrHalves<B, false>, T>" for dtype in ("bf16", "f16")},
    **{f"halves {dtype}": "Lanes<TilesOrHalves<8, true>, T>" for dtype in ("bf16", "f16")},
}
_UNITS = {"rows bf16": "Tiled<Lying>", "tiles bf16": "ByPanels<Panels>"}
_FAMILIES: dict[str, dict[str, str]] = {
    "plain": _PLAIN,
    "vectors": _PLAIN | _VECTORS | {"q rows bf16": "UnpackedLanes<B>"},
    "bytes": _PLAIN | _VECTORS | _BYTES,
    "units": _PLAIN
    | _UNITS
    | {"q rows bf16": "Tiled<UnpackedTiles<B>>", "q tiles bf16": "ByPanels<UnpackedPanels<B>>"},
    "units and bytes": _PLAIN
    | _BYTES
    | _UNITS
    | {
        "q rows bf16": "FewOrMany<Lanes<BytePanel<B>, bf16>, Tiled<UnpackedTiles<B>>>",
        "q tiles bf16": "FewOrMany<LanesOrTiles<B, bf16, false>, ByPanels<UnpackedPanels<B>>>",
        "q tiles f16": "LanesOrTiles<B, f16, false>",
        "halves bf16": "FewOrMany<LanesOrTiles<8, bf16, true>, ByPanels<UnpackedPanels<8>>>",
        "halves f16": "LanesOrTiles<8, f16, true>",
    },
}
_FAMILY_OF = {
    "amx": "units and bytes",
    "avx512_bf16": "bytes",
    "avx512_vnni": "bytes",
    "avx512": "vectors",
    "avx2": "vectors",
    "portable": "plain",
}


@dataclass(frozen=True)
class Choice:
    """The kernel of products with one layout of weights and one dtype of x."""

    layout: str
    dtype: str
    kernel: str | None
    """Its C++ type; None where products take such a weight as row-major."""
    own_max: int | None = None
    """The most rows that it computes; torch computes more. None is any number."""

    def rows(self) -> list[tuple[str, str]]:
        """Return the kernel in words, for each range of rows of x."""
        if self.kernel is None:
            return [("any", "as row-major")]
        if not self.kernel.startswith(_EITHER):
            words = _in_words(self.kernel)
            if self.own_max is None:
                return [("any", words)]
            return [(f"to {self.own_max}", words), (f"over {self.own_max}", "torch's own product")]
        few, many = _split(self.kernel.removeprefix(_EITHER).removesuffix(">"))
        return [(f"to {ROWS_ALIKE}", _in_words(few)), (f"over {ROWS_ALIKE}", _in_words(many))]


def _split(kernels: str) -> tuple[str, str]:
    """Return two C++ types that stand side by side."""
    comma = next(
        place
        for place, character in enumerate(kernels)
        if character == "," and kernels[:place].count("<") == kernels[:place].count(">")
    )
    return kernels[:comma], kernels[comma + 1 :].strip()


def _in_words(kernel: str) -> str:
    known = [name for name in sorted(_NAMES, key=len, reverse=True) if name in kernel]
    assert known, f"{kernel} has no name"
    return _NAMES[known[0]]


def family_of(level: str, *, has_vnni: bool = True) -> str:
    """Return the family of a level; emulated AMX also has the vectors of bytes that the machine has."""
    if level == "emulated_amx":
        return "units and bytes" if has_vnni else "units"
    return _FAMILY_OF[level]


def choices_of(level: str, *, has_vnni: bool = True) -> list[Choice]:
    """Return the choice for every layout and dtype.

    Args:
        has_vnni: see `family_of`.
    """
    table = _FAMILIES[family_of(level, has_vnni=has_vnni)]
    own_max = ROWS_OWN_MAX.get(level, {})
    return [
        Choice(layout, dtype, _kernel(table, layout, dtype), own_max.get(dtype) if layout == "rows" else None)
        for layout in LAYOUTS
        for dtype in TYPES
    ]


def _kernel(table: dict[str, str], layout: str, dtype: str) -> str | None:
    bits, quantized, kind = layout.partition(" bits in ")
    key = f"q {kind}" if quantized else layout
    found = table.get(f"{key} {dtype}", table.get(key))
    if found is None:
        return None
    return re.sub(r"\bT\b", TYPES[dtype], re.sub(r"\bB\b", bits, found))


def checks_of(level: str, *, has_vnni: bool = True) -> str:
    """Return C++ that does not compile for a level whose choices differ from the table."""
    asserts = [line for choice in choices_of(level, has_vnni=has_vnni) for line in _checks(choice)]
    return "\n".join(['#include "gemm/kernel_choice.h"', "#include <utility>", *asserts]) + "\n"


def _checks(choice: Choice) -> Iterator[str]:
    kind = TYPES[choice.dtype]
    product, weight = f"std::declval<Product<{kind}>>()", "std::declval<Quantized>()"
    bits, quantized, layout = choice.layout.partition(" bits in ")
    if choice.layout == "rows":
        call = f"kernel_of({product})"
    elif choice.layout == "tiles":
        call = f"tiled_kernel_of({product}, (const bf16*)nullptr)"
    elif layout == "rows":
        call = f"kernel_of<{bits}>({product}, {weight})"
    else:
        call = f"tiled_kernel_of<{bits if quantized else '8, true'}>({product}, {weight})"
    if choice.kernel is not None:
        yield f"static_assert(std::is_same_v<decltype({call}), {choice.kernel}>);"
    elif choice.layout != "tiles":
        yield f"static_assert(!{'TAKES_TILES' if quantized else 'TAKES_HALVES'}<{kind}>);"
