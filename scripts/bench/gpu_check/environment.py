"""Environment of the sections' processes: Pageant and the carried wheels on the path, and nothing installed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

__all__ = ["ROOT", "make_environment", "unpack_wheels"]

ROOT = Path(__file__).resolve().parents[3]
_WHEELS = ".whl"


def make_environment(*, interprets: bool) -> dict[str, str]:
    """Return the environment of the sections' processes; with `interprets`, Triton interprets its kernels.

    `scripts/gpu-check` has put a link called `pageant` on the path; the wheels of `.whl` are unpacked beside it.
    """
    packages = ROOT / ".cache" / "gpu-check" / "packages"
    unpack_wheels(ROOT / _WHEELS, packages)
    path = [os.environ.get("PYTHONPATH", ""), str(packages)]
    # The interpreter is as fast with one thread, and the sections' own processes share the cores.
    interpreting = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if interprets else {}
    paths = os.pathsep.join(part for part in path if part)
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **interpreting}


def unpack_wheels(wheels: Path, packages: Path) -> list[str]:
    """Unpack those wheels that fit this Python and are not installed; returns the names of what is unpacked.

    What was unpacked earlier is removed first.
    """
    shutil.rmtree(packages, ignore_errors=True)
    packages.mkdir(parents=True)
    unpacked = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, _, *_, python, abi, _ = wheel.stem.split("-")
        if _fits(python, abi) and not _is_installed(name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)
            unpacked.append(name)
    return unpacked


def _fits(python: str, abi: str) -> bool:
    """Tell whether a wheel's tags are those of this Python: of its own version, of any, or of the stable ABI."""
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if own in python.split(".") or "py3" in python.split("."):
        return True
    since = re.fullmatch(r"cp3(\d+)", python)
    return abi == "abi3" and since is not None and int(since[1]) <= sys.version_info.minor


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
