"""Instruction sets that the C++ sources are compiled for, and the best one of this machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["LEVELS", "ON_TRIAL", "compiler_flags", "levels_here"]

_AVX512 = (
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mprefer-vector-width=512",
)

_AVX512_HAS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"})

# From best to plainest: the features that the processor must have, and the compiler's flags.
_LEVELS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "amx": (
        _AVX512_HAS | {"avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"},
        (*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    "avx512_bf16": (
        _AVX512_HAS | {"avx512_bf16", "avx512_vnni"},
        (*_AVX512, "-mavx512bf16", "-mavx512vnni"),
    ),
    "avx512_vnni": (_AVX512_HAS | {"avx512_vnni"}, (*_AVX512, "-mavx512vnni")),
    "avx512": (_AVX512_HAS, _AVX512),
    "avx2": (frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c")),
    "portable": (frozenset(), ()),
    # amx without its instructions, very slowly: for tests on machines that lack them. See compiler_flags.
    "emulated_amx": (frozenset(), ("-DPAGEANT_EMULATE_TILES",)),
}
LEVELS = tuple(_LEVELS)
CPU_INFO = Path("/proc/cpuinfo")
# Levels that are used only after a trial: see `pageant.kernels.cpu.trial`.
ON_TRIAL = frozenset({"amx", "emulated_amx"})


def levels_here() -> list[str]:
    """Return the levels that run here, the best one first; only the one that PAGEANT_CPU_LEVEL names, if it is
    set.

    Raises ValueError when that is no level, or one that this processor lacks.
    """
    vendor, features = _processor()
    possible = [level for level, (needed, _) in _LEVELS.items() if needed <= features]
    if vendor == "GenuineIntel" and "avx512_fp16" in features and "avx512_bf16" in possible:
        # Since Sapphire Rapids, a bfloat16 dot product outside of AMX takes four times as long as a float32 FMA, and
        # does the work of two.
        possible.remove("avx512_bf16")
        possible.insert(possible.index("avx512_vnni") + 1, "avx512_bf16")
    wanted = os.environ.get("PAGEANT_CPU_LEVEL")
    if wanted is None:
        return possible
    if wanted not in possible:
        raise ValueError(f"PAGEANT_CPU_LEVEL is {wanted!r}; expected one of {', '.join(possible)} here")
    return [wanted]


def compiler_flags(level: str) -> tuple[str, ...]:
    """Return the compiler's flags for a level.

    The emulated level also gets the vectors that a processor with AMX has, if this one has them.
    """
    needed, vectors = _LEVELS["avx512_vnni"]
    beside = vectors if level == "emulated_amx" and needed <= _processor()[1] else ()
    return (*beside, *_LEVELS[level][1])


def _processor() -> tuple[str, frozenset[str]]:
    """Return the processor's vendor, and its features by Linux's names, without those that the kernel has
    disabled.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not CPU_INFO.exists():
        return "", frozenset()
    found: dict[str, str] = {}
    for line in CPU_INFO.read_text().splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found.get("vendor_id", ""), frozenset(found.get("flags", "").split())
