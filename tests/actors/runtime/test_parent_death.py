"""A child that asked for it ends with its parent, even a killed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()  # it has asked
print(child.pid, flush=True)
child.wait()
"""
CHILD = """
import os, time
from pageant.actors.runtime.parent_death import die_with_parent
die_with_parent(os.getppid())
print("asked", flush=True)
time.sleep(600)
"""


def test_a_child_ends_when_its_parent_is_killed():
    command = [sys.executable, "-c", PARENT.format(child=CHILD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone == [child]


def test_a_child_whose_parent_has_gone_ends_at_once():
    code = "from pageant.actors.runtime.parent_death import die_with_parent; die_with_parent(-1)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
