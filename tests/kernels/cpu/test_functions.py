"""The table of the library's functions is what the C++ sources define, and the compiler says so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pageant.kernels.cpu.build import SOURCES, find_compiler
from pageant.kernels.cpu.functions import OPTIONAL, SIGNATURES, Signature, checks_of
from pageant.kernels.cpu.levels import compiler_flags

FLAGS = ("-std=c++17", "-fsyntax-only", "-w", f"-I{SOURCES}")


def _compile(text: str, folder: Path, level: str = "portable") -> str:
    """Return what the compiler says of a source; "" if it is right."""
    (folder / "checks.cpp").write_text(text)
    command = [*find_compiler(), *FLAGS, *compiler_flags(level), str(folder / "checks.cpp")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized" in said.stderr:
        pytest.skip("this compiler knows no AMX")
    return said.stderr if said.returncode else ""


def test_every_exported_function_is_in_the_table():
    found = set()
    for path in SOURCES.rglob("*.cpp"):
        found |= set(re.findall(r"\bpageant_(\w+?)(?:_##SUFFIX)?\(", path.read_text()))
    # Macros that define several functions, whose names the compiler puts together.
    found -= {name for name in found if "##" in name} | {"add_"}
    plain = {name for name in SIGNATURES if not name.endswith("_T")}
    assert plain <= found
    assert {name for name in found if name not in plain and f"{name}_T" not in SIGNATURES} <= {
        *(
            f"{name}_{suffix}"
            for name in ("linear", "attention", "add_low_rank")
            for suffix in ("f32", "bf16", "f16")
        )
    }


def test_the_sources_define_what_the_table_declares(tmp_path: Path):
    sources = sorted({signature.source for signature in SIGNATURES.values()})
    assert sources == sorted(
        str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.cpp") if "EXPORT" in path.read_text()
    )
    of_some_levels = {SIGNATURES[name].source for name in OPTIONAL}
    for source in sources:
        level = "amx" if source in of_some_levels else "portable"
        assert _compile(checks_of(source), tmp_path, level) == "", source


def test_a_declaration_that_differs_does_not_compile(tmp_path: Path):
    declared = Signature.parse("sampling/masks.cpp", "void mask_logits(float* logits, int64_t stride)")
    text = f'#include "{declared.source}"\n#include <type_traits>\n' + "\n".join(declared.checks())
    assert "static assertion failed" in _compile(text, tmp_path)
