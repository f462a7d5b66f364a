"""A test that ends its process is reported as failed, once, and the others still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = """
from crash_once import CrashOnce
def pytest_xdist_make_scheduler(config, log):
    return CrashOnce(config, log)
"""
FATAL = """
import os
def test_before(): pass
def test_fatal(): os._exit(3)
def test_after(): pass
"""


def test_a_test_that_ends_its_process_fails_once_and_the_others_run(tmp_path: Path):
    (tmp_path / "crash_once.py").write_text((Path(__file__).parent / "crash_once.py").read_text())
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(FATAL)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    options = "-c /dev/null -q --numprocesses 1 --dist loadfile --max-worker-restart 2 -p no:cacheprovider"
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options.split(), "--rootdir", tmp_path, tmp_path],
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        # Now and then pytest-xdist itself ends here: it writes to the process in the moment in which that ends.
        if "BrokenPipeError" not in ran.stdout:
            break
    assert "1 failed, 3 passed" in ran.stdout and "test_fatal" in ran.stdout, ran.stdout + ran.stderr
