"""Starts the files here that run in other libraries' environments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["run_foreign"]

HERE = Path(__file__).parent


def run_foreign(library: str, python: Path, *arguments: object) -> None:
    """Run `in_LIBRARY.py` with an interpreter of the library's environment.

    Raises RuntimeError with the end of what it said if it fails.
    """
    command = [str(python), str(HERE / f"in_{library}.py"), *map(str, arguments)]
    # The files here bear other names than libraries, but their folder stays out of the path all the same.
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("PYTHONPATH", None)
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    if library == "vllm" and openmp.exists():
        variables["LD_PRELOAD"] = str(openmp)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{library} ended with {done.returncode}: {done.stderr[-2000:]}")
