"""Starts files of the benchmarks that run in other libraries' environments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["foreign_variables", "run_foreign"]


def foreign_variables(python: Path) -> dict[str, str]:
    """Return the variables for an interpreter of another environment: nothing of this one, and no hub.

    The files bear other names than libraries, but their folder stays out of the path all the same.
    """
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("PYTHONPATH", None)
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    if openmp.exists():  # vLLM's
        variables["LD_PRELOAD"] = str(openmp)
    return variables


def run_foreign(file: Path, python: Path, *arguments: object) -> None:
    """Run a file with an interpreter of another environment.

    Raises RuntimeError with the end of what it said if it fails.
    """
    command = [str(python), str(file), *map(str, arguments)]
    done = subprocess.run(command, env=foreign_variables(python), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{file.name} ended with {done.returncode}: {done.stderr[-2000:]}")
