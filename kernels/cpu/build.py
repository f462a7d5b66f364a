"""Compilation of the C++ sources, once for each machine.

The compiler is called directly: without torch's headers, all is compiled in a few seconds. A library's name has
a hash of all that it was made from. A library that exists is therefore right, and none ever has to be compared
or removed. It is written elsewhere and renamed into place, so that no process sees half of one. A lock lets
processes that start together wait for the first of them instead of compiling the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pageant.kernels.cpu.levels import ON_TRIAL, compiler_flags

try:
    import fcntl
except ImportError:  # not on Windows, where two may compile alike
    fcntl = None  # type: ignore[assignment]

__all__ = ["BadLevel", "BuildError", "build", "cache_folder", "find_compiler"]

log = logging.getLogger("pageant.kernels")

TRIAL_SECONDS = 120.0
SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fvisibility=hidden", "-pthread", "-w")


class BuildError(RuntimeError):
    """The C++ kernels could not be compiled here."""


class BadLevel(BuildError):
    """The kernels were compiled, and do not work on this machine."""


def build(level: str) -> Path:
    """Return the shared library for an instruction set, compiling it if it is not in the cache.

    Raises BuildError with the compiler's output, or if there is no compiler.
    """
    compiler = find_compiler()
    if not compiler:
        named = f", CXX being {os.environ['CXX']!r}" if os.environ.get("CXX") else ""
        raise BuildError(f"no C++ compiler was found{named}: install g++ or clang++, or name one in CXX")
    flags = (*_FLAGS, *compiler_flags(level))
    library = cache_folder() / f"kernels-{level}-{_fingerprint(compiler, flags)}.so"
    if library.exists():
        return library
    failure = library.with_suffix(".failed")
    if failure.exists():
        raise BadLevel(failure.read_text())
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _lock(library.with_suffix(".lock")):
            if not library.exists():
                log.info("compiling the CPU kernels for %s with %s", level, " ".join(compiler))
                _compile(compiler, flags, library, tried=level in ON_TRIAL)
    except BadLevel as error:
        failure.write_text(str(error))
        raise
    except OSError as error:
        raise BuildError(f"{library.parent} cannot be written to ({error}): set PAGEANT_CACHE") from error
    return library


def cache_folder() -> Path:
    """Return PAGEANT_CACHE, or `pageant` in the user's cache folder.

    Raises BuildError where there is none.
    """
    if named := os.environ.get("PAGEANT_CACHE"):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pageant"
    except RuntimeError as error:
        raise BuildError("there is no home folder to keep compiled kernels in: set PAGEANT_CACHE") from error


def find_compiler() -> list[str]:
    """Return the command of CXX, which may have arguments, or of the first C++ compiler there is; empty if
    there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    return []


def _fingerprint(compiler: list[str], flags: tuple[str, ...]) -> str:
    """Return a hash of all that a library is made from."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.blake2b(digest_size=12)
    for part in (*compiler, *flags, platform.machine()):
        digest.update(part.encode() + b"\0")
    digest.update(version)
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _compile(compiler: list[str], flags: tuple[str, ...], library: Path, *, tried: bool) -> None:
    """Compile every source side by side, and link them; if `tried`, test the library in a process of its own
    first.
    """
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        objects, running = [], []
        for source in sorted(SOURCES.rglob("*.cpp")):
            made = Path(folder) / f"{source.parent.name}-{source.stem}.o"
            objects.append(made)
            # Sources include one another by their paths below this folder.
            running.append(_start([*compiler, *flags, f"-I{SOURCES}", "-c", str(source), "-o", str(made)]))
        # Wait for all of them before reporting a failure: none may write into a folder that is gone.
        said = [(process.args, process.communicate()[1], process.returncode) for process in running]
        linked = Path(folder) / library.name
        if not any(code for _, _, code in said):
            linking = _start([*compiler, "-shared", "-pthread", *map(str, objects), "-o", str(linked)])
            said.append((linking.args, linking.communicate()[1], linking.returncode))
        for command, errors, code in said:
            if code:
                raise BuildError(f"{' '.join(map(str, command))} failed:\n{errors[-2000:]}")  # type: ignore[arg-type]
        if tried:
            _try(linked)
        os.replace(linked, library)


def _try(library: Path) -> None:
    """Let a process of its own use a library that was just compiled.

    Raises BadLevel when it dies or finds wrong results.
    """
    command = [sys.executable, "-m", "pageant.kernels.cpu.trial", str(library)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=TRIAL_SECONDS)
    except subprocess.SubprocessError as error:
        raise BadLevel(
            f"{library.name} failed its trial, so a plainer instruction set is taken: {error}"
        ) from None


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the file's lock, which ends with the process if need be."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
