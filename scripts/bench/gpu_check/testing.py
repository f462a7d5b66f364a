"""The tests that a GPU is for, with a line for each as it ends."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.environment import ROOT

__all__ = ["run"]

_KERNELS = ("tests/kernels/triton", "tests/gpu/test_attention.py")
_MODELS = ("tests/gpu", "--ignore=tests/gpu/test_attention.py")
_TINY_KERNELS = ("tests/kernels/triton/test_cache.py",)
_PROCESSES_MAX = {"kernels": 12, "models": 5}  # each has a CUDA context, and compiles for itself


class Outcomes:
    """A plugin of pytest's that records each test's outcome."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test when it was called, or when its set-up or its end failed or skipped it."""
        if report.when != "call" and report.passed:
            return
        figures: dict[str, Any] = {"outcome": report.outcome, "seconds": round(report.duration, 2)}
        if report.failed:
            figures["error"] = _last_line(report.longreprtext)
        self._recorder.add(report.nodeid, **figures)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that could not be imported as a failed test."""
        if report.failed:
            self._recorder.add(report.nodeid, outcome="failed", error=_last_line(report.longreprtext))


def _last_line(text: str) -> str:
    """Return what an assertion or an exception said: the first of the lines that pytest marks."""
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (marked or text.strip().splitlines() or ["failed"])[0][:300]


def run(recorder: Recorder, tiny: bool) -> None:
    """Run the tests of the recorder's section. Raises RuntimeError where pytest itself failed."""
    tests = _MODELS if recorder.section == "models" else _TINY_KERNELS if tiny else _KERNELS
    processes = min(_PROCESSES_MAX[recorder.section], len(os.sched_getaffinity(0)))
    side_by_side = [] if tiny else ["-n", str(processes), "--dist", "worksteal"]
    arguments = [
        *tests,
        "-p", "no:cacheprovider",
        "-o", "filterwarnings=default",  # another torch's warnings are not this code's
        "-o", "faulthandler_timeout=0",
        "--tb=short",
        *side_by_side,
    ]  # fmt: skip
    os.chdir(ROOT)
    status = pytest.main(arguments, plugins=[Outcomes(recorder)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status!r}")
