"""Processor time of processes."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from pageant.actors.runtime.processor_time import processor_seconds


def test_it_is_what_the_system_says_of_the_process():
    rounding = 1e-6  # psutil and the function add the same ticks in another order
    before = sum(psutil.Process().cpu_times()[:2])
    found = processor_seconds(os.getpid())
    after = sum(psutil.Process().cpu_times()[:2])
    assert before - rounding <= found <= after + rounding


def test_a_process_that_is_gone_has_none():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(OSError):
        processor_seconds(ended.pid)
