"""The table of kernels is total, and says what the C++ chooses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pageant.kernels.cpu.build import SOURCES, find_compiler
from pageant.kernels.cpu.choices import LAYOUTS, checks_of, choices_of
from pageant.kernels.cpu.compiled import CompiledKernels
from pageant.kernels.cpu.functions import TYPES
from pageant.kernels.cpu.levels import LEVELS, compiler_flags

# Levels whose choices differ.
COMPILED = ("amx", "avx512_vnni", "avx2", "portable", "emulated_amx")


def _said(text: str, level: str, folder: Path) -> str:
    (folder / "checks.cpp").write_text(text)
    flags = ("-std=c++17", "-fsyntax-only", "-w", f"-I{SOURCES}", *compiler_flags(level))
    command = [*find_compiler(), *flags, str(folder / "checks.cpp")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized" in result.stderr:
        pytest.skip("this compiler does not know the level")
    return result.stderr if result.returncode else ""


@pytest.mark.parametrize("level", LEVELS)
def test_every_layout_and_dtype_has_a_kernel_at_every_level(level: str) -> None:
    choices = choices_of(level)
    assert [(one.layout, one.dtype) for one in choices] == [(a, b) for a in LAYOUTS for b in TYPES]
    for choice in choices:
        assert all(words for _, words in choice.rows())
        assert choice.kernel is not None or not choice.layout.endswith("rows")


@pytest.mark.parametrize("level", COMPILED)
def test_the_sources_choose_what_the_table_says(level: str, tmp_path: Path) -> None:
    has_vnni = any("vnni" in flag for flag in compiler_flags(level))
    assert _said(checks_of(level, has_vnni=has_vnni), level, tmp_path) == ""


def test_another_choice_does_not_compile(tmp_path: Path) -> None:
    assert "static assertion failed" in _said(checks_of("portable"), "avx2", tmp_path)


def test_weights_in_tiles_are_made_where_the_table_has_kernels_for_them() -> None:
    kernels = CompiledKernels()
    of_tiles = {
        one.dtype for one in choices_of(kernels.level) if one.layout == "8 bits in tiles" and one.kernel
    }
    assert {str(dtype) for dtype in kernels.quantized_tiles} == {
        {"bf16": "torch.bfloat16", "f16": "torch.float16", "f32": "torch.float32"}[one] for one in of_tiles
    }
