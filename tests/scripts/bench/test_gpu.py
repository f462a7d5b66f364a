"""The GPU benchmark runs from end to end, on tiny shapes in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_cases_are_measured_and_held_against_their_bars(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "pageant.scripts.bench.gpu", "--device", "cpu", "--tiny"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "--only", "8B", "--write", path], check=True, env=environment, capture_output=True
    )
    written = json.loads(path.read_text())
    assert written["machine"]["date"] and "copy_gigabytes_per_second" in written
    results = {result["name"]: result for result in written["results"]}
    assert set(written["bars_met"]) == {"8B shape, prefill of 4096", "8B shape, decode, batch 1"}
    assert results["8B shape, prefill of 4096"]["matrix"] is not None
    assert results["8B shape, decode, batch 1"]["bandwidth"] is not None
