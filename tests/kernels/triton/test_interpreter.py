"""Runs this folder's tests in a process in which Triton interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_gives_what_the_reference_gives() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__).parent)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout and "skipped" not in result.stdout
