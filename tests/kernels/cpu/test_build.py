"""Compiling the C++ kernels: once, without a race, and without them where that is not possible."""

from __future__ import annotations

import ctypes
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pageant import kernels
from pageant.kernels.cpu import build as building
from pageant.kernels.cpu import library, trial
from pageant.kernels.cpu.build import BadLevel, BuildError, build, cache_folder
from pageant.kernels.cpu.levels import LEVELS, compiler_flags, levels_here
from pageant.kernels.cpu.library import Library, load_library

EXPORT = 'extern "C" __attribute__((visibility("default")))'
EXPORTED = EXPORT + " int one() {{ return {}; }}\n"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One short source instead of the kernels, so that compiling it takes no time."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "one.cpp").write_text(EXPORTED.format(1))
    monkeypatch.setattr(building, "SOURCES", folder)
    return folder / "one.cpp"


def test_a_library_is_compiled_once(empty_cache: Path, small_source: Path) -> None:
    first = build("portable")
    made = first.stat().st_mtime_ns
    assert build("portable") == first and first.stat().st_mtime_ns == made
    assert [path.suffix for path in sorted(empty_cache.iterdir())] == [".lock", ".so"], "nothing is left over"


def test_another_source_or_level_is_another_library(empty_cache: Path, small_source: Path) -> None:
    first = build("portable")
    small_source.write_text(EXPORTED.format(2))
    assert build("portable") != first
    assert build("avx2") not in (first, build("portable"))


def test_processes_that_start_together_all_get_a_whole_library(empty_cache: Path, small_source: Path) -> None:
    code = (
        "import ctypes, sys, pathlib\n"
        "from pageant.kernels.cpu import build\n"
        "build.SOURCES = pathlib.Path(sys.argv[1])\n"
        "assert ctypes.CDLL(str(build.build('portable'))).one() == 1\n"
    )
    command = [sys.executable, "-c", code, str(small_source.parent)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    failed = [(process.communicate()[1], process.returncode) for process in running]
    assert [code for _, code in failed] == [0, 0, 0], failed
    assert len(list(empty_cache.glob("*.so"))) == 1


def test_what_the_compiler_says_is_in_the_error(empty_cache: Path, small_source: Path) -> None:
    small_source.write_text("int main() { return nonsense; }\n")
    with pytest.raises(BuildError, match="nonsense"):
        build("portable")
    assert list(empty_cache.glob("build-*")) == []


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, small_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEANT_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="set PAGEANT_CACHE"):
        build("portable")


def test_without_a_compiler_auto_is_the_reference_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernels._warn.cache_clear()
    load_library.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [kernels.load("auto").name for _ in range(2)] == ["reference", "reference"]
    assert [record.message for record in caplog.records if "no C++ compiler" in record.message] != []
    assert len(caplog.records) == 1
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        kernels.load("cpu")


def test_a_compiler_may_be_named_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    path, *rest = building.find_compiler()
    assert not rest
    monkeypatch.setenv("CXX", f"{Path(path).name} -m64")
    assert building.find_compiler() == [path, "-m64"]


def test_without_a_home_folder_auto_is_the_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("PAGEANT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    kernels._warn.cache_clear()
    load_library.cache_clear()
    assert kernels.load("auto").name == "reference"
    assert "set PAGEANT_CACHE" in caplog.text


def test_a_library_that_the_system_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels.so").write_bytes(b"no library")
    with pytest.raises(BuildError, match=r"kernels\.so cannot be loaded .*set PAGEANT_CACHE"):
        Library(tmp_path / "kernels.so", "portable")


def test_with_a_compiler_auto_is_cpu() -> None:
    assert kernels.load("auto").name == "cpu"


def test_another_device_than_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="does not run on 'cuda:0'"):
        kernels.load("cpu", "cuda:0")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PAGEANT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "pageant"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "pageant"


def test_a_level_may_be_chosen_if_it_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(levels_here()) <= set(LEVELS)
    monkeypatch.setenv("PAGEANT_CPU_LEVEL", "portable")
    assert levels_here() == ["portable"]
    monkeypatch.setenv("PAGEANT_CPU_LEVEL", "avx1024")
    with pytest.raises(ValueError, match=r"PAGEANT_CPU_LEVEL is 'avx1024'; expected one of .*portable"):
        levels_here()


def test_a_level_that_fails_its_trial_gives_way_to_the_next_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built = build("portable")
    compiled = []

    def compile_(compiler: str, flags: tuple[str, ...], path: Path, *, tried: bool) -> None:
        compiled.append(path.name)
        if tried:
            building._try(tmp_path / "nothing there.so")
        shutil.copy(built, path)

    monkeypatch.setenv("PAGEANT_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "levels_here", lambda: ["emulated_amx", "portable"])
    monkeypatch.setattr(building, "_compile", compile_)
    load = library.load_library.__wrapped__
    assert load().level == load().level == "portable"
    assert [name.split("-")[1] for name in compiled] == ["emulated_amx", "portable"]
    assert "failed its trial" in caplog.text


def test_a_library_that_the_system_gives_no_leave_to_is_refused(
    empty_cache: Path, small_source: Path
) -> None:
    small_source.write_text(f"{EXPORT} long pageant_allowed() {{ return 0; }}\n")
    with pytest.raises(BadLevel, match="does not let this process use what the portable kernels"):
        library.Library(build("portable"), "portable")


@pytest.mark.parametrize("level", levels_here())
def test_a_new_process_multiplies_by_what_others_compiled(level: str) -> None:
    """Multiply by a level's own registers too, for which every process needs the system's leave."""
    code = (
        "import torch\n"
        "from pageant.kernels.cpu import CpuKernels\n"
        f"y = CpuKernels({level!r}).linear(*(torch.ones(n, 64, dtype=torch.bfloat16) for n in (3, 48)))\n"
        "assert y.tolist() == [[64.0] * 48] * 3, y\n"
    )
    build(level)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_only_other_machines_run_compiles_here() -> None:
    compiler = building.find_compiler()
    flags = ("-std=c++17", "-fsyntax-only", "-w", f"-I{building.SOURCES}", *compiler_flags("amx"))
    sources = [
        building.SOURCES / name
        for name in ("gemm/linear.cpp", "gemm/quantized.cpp", "sampling/screening.cpp", "gemm/experts.cpp")
    ]
    assert compiler
    said = subprocess.run(
        [*compiler, *flags, *map(str, sources)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0 or "unrecognized" in said.stderr, said.stderr


@pytest.mark.parametrize(
    ("edit", "passes"),
    [
        (None, True),
        ("pageant_allowed", False),
        ("pageant_linear_bf16", False),
        ("pageant_tiled_linear", False),
    ],
)
def test_a_trial_fails_what_is_not_allowed_or_wrong(edit: str | None, passes: bool) -> None:
    right = ctypes.CDLL(str(build("emulated_amx")))

    class Library:
        pageant_allowed = right.pageant_allowed
        pageant_linear_bf16 = right.pageant_linear_bf16
        pageant_tiled_linear = right.pageant_tiled_linear

    def wrong(*arguments: ctypes.c_void_p) -> int:
        right.pageant_linear_bf16(*arguments)
        ctypes.cast(arguments[6], ctypes.POINTER(ctypes.c_float))[0] += 1.0
        return 0

    def wrong_in_tiles(*arguments: ctypes.c_void_p) -> int:
        right.pageant_tiled_linear(*arguments)
        ctypes.cast(arguments[4], ctypes.POINTER(ctypes.c_uint16))[0] ^= 0x8000  # the sign
        return 0

    edits = {
        "pageant_allowed": lambda: 0,
        "pageant_linear_bf16": wrong,
        "pageant_tiled_linear": wrong_in_tiles,
    }
    tampered = Library()
    if edit is not None:
        setattr(tampered, edit, edits[edit])
    assert trial.is_right(tampered) == passes
