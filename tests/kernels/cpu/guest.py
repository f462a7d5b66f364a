"""The C++ kernels as another processor runs them: cross-compiled, under qemu's user mode."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.kernels.cpu.build import SOURCES, cache_folder

COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
# Without optimising, all is compiled in a fifth of the time. PAGEANT_TEST_ARM64=-O3 tests what users get.
OPTIMISED = os.environ.get("PAGEANT_TEST_ARM64", "-O0")
FLAGS = (OPTIMISED, "-std=c++17", "-fno-math-errno", "-pthread", "-w", f"-I{SOURCES}")
CALLER = Path(__file__).with_name("guest_calls.cpp")
INTEGER, DOUBLE, BUFFER = range(3)

Argument = int | float | npt.NDArray[Any] | None


def build(functions: Sequence[str]) -> Path:
    """Return a program that calls these functions, compiled with all sources of the kernels unless none has changed.

    Raises CalledProcessError with the compiler's output.
    """
    listed = _listed(functions)
    sources = sorted(SOURCES.rglob("*.cpp"))
    digest = hashlib.blake2b(listed.encode() + repr((COMPILER, FLAGS)).encode(), digest_size=12)
    for path in [CALLER, *sorted(path for path in SOURCES.rglob("*") if path.is_file())]:
        digest.update(path.read_bytes())
    program = cache_folder() / f"guest-{digest.hexdigest()}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=program.parent, prefix="build-") as name,
        ThreadPoolExecutor(2) as pool,
    ):
        folder = Path(name)
        (folder / "guest_functions.h").write_text(listed)

        def compile_one(number: int) -> str:
            made = folder / f"{number}.o"
            _compile([f"-I{folder}", "-c", str([CALLER, *sources][number]), "-o", str(made)])
            return str(made)

        objects = list(pool.map(compile_one, range(len(sources) + 1)))
        _compile(["-static", *objects, "-o", str(folder / "program")])
        os.replace(folder / "program", program)
    return program


def call(program: Path, function: str, arguments: Sequence[Argument]) -> list[npt.NDArray[Any]]:
    """Call a function in a process of its own. Return copies of the arrays among the arguments, as it left them."""
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    name = function.encode()
    told = [struct.pack("<I", len(name)), name, struct.pack("<I", len(arguments))]
    told += [_encoded(one) for one in arguments]
    command = [EMULATOR or "", str(program)]
    left = subprocess.run(command, input=b"".join(told), capture_output=True, check=True, timeout=120).stdout
    places = np.cumsum([0, *(one.nbytes for one in arrays)])
    assert len(left) == places[-1]
    return [
        np.frombuffer(left[place : place + one.nbytes], one.dtype).reshape(one.shape)
        for one, place in zip(arrays, places, strict=False)
    ]


def _listed(functions: Sequence[str]) -> str:
    """Return C++ that declares functions and lists them by name."""
    declared = [f'extern "C" void pageant_{name}();' for name in functions]
    entries = ", ".join(f'{{"{name}", pageant_{name}}}' for name in functions)
    return "\n".join([*declared, f"static const Function FUNCTIONS[] = {{{entries}}};", ""])


def _encoded(argument: Argument) -> bytes:
    if isinstance(argument, float):
        return struct.pack("<Bd", DOUBLE, argument)
    if isinstance(argument, np.ndarray):
        return struct.pack("<Bq", BUFFER, argument.nbytes) + argument.tobytes()
    return struct.pack("<Bq", INTEGER, argument or 0)


def _compile(arguments: Sequence[str]) -> None:
    assert COMPILER is not None
    result = subprocess.run([COMPILER, *FLAGS, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
