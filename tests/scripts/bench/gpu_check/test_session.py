"""The frame of the GPU's session: whatever a section does, the others go on and what was measured is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import pytest

from pageant.scripts.bench.gpu_check.cases import FAULTS, Recorder, read_cases
from pageant.scripts.bench.gpu_check.sections import SECTIONS, choose_sections
from pageant.scripts.bench.gpu_check.session import Session
from pageant.scripts.bench.gpu_check.table import LINES_MAX

STUB = Path(__file__).parent / "stub_session.py"
NAMES = [section.name for section in SECTIONS]
ENDINGS = {"crash": "crashed: signal 11", "hang": "hung: killed", "exception": "failed: exit 1"}


@pytest.mark.parametrize("parity", [0, 1])
def test_a_fault_in_a_section_costs_no_other_its_results(tmp_path: Path, parity: int) -> None:
    """Every second section has a fault, of each kind in turn."""
    faults = dict(zip(NAMES[parity::2], cycle(FAULTS), strict=False))
    told = ",".join(f"{name}={fault}" for name, fault in faults.items())
    result = subprocess.run(
        [sys.executable, STUB, tmp_path, told], capture_output=True, text=True, check=False, timeout=250
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "cases.jsonl", "output.log", "session.json", "table.txt",
    ]  # fmt: skip
    session = json.loads((tmp_path / "session.json").read_text())
    statuses = {section["name"]: section["status"] for section in session["sections"]}
    assert list(statuses) == NAMES
    for name, status in statuses.items():
        expected = ENDINGS[faults[name]] if name in faults else "done"
        assert status.startswith(expected), (name, status, result.stderr[-2000:])
    cases = [(case["section"], case["case"]) for case in session["cases"]]
    for name in NAMES:
        assert (name, "first") in cases
        assert ((name, "last") in cases) == (name not in faults)
        assert ((name, "contained") in cases) == (name not in faults), "the case's error is recorded"
    strays = [case["stray"] for case in session["cases"] if "stray" in case]
    assert len(strays) == len(NAMES) and not any(map(is_running, strays))
    printed = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert printed == session["cases"], "each case is printed as it is measured"
    table = (tmp_path / "table.txt").read_text().splitlines()
    assert result.stdout.splitlines()[-len(table) :] == table and len(table) <= LINES_MAX
    assert all(any(line.startswith(name) for line in table) for name in NAMES)
    parts = (tmp_path / "output.log").read_text().split("===== ")[1:]
    for name, part in zip(NAMES, parts, strict=True):
        assert part.startswith(name) and ("in _break" in part) == (name in faults), "it left its stack"
    tests_broke = any(name in faults for name in ("kernels", "models"))
    assert result.returncode == (1 if tests_broke else 0)
    assert parity == 1 or tests_broke, "one of the two sessions has a fault in a section of tests"


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_real_sections_run_in_a_rehearsal(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    result = subprocess.run(
        [root / "scripts" / "gpu-check", tmp_path, "--tiny", "--only", "facts,limits,shape8b"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    session = json.loads((tmp_path / "session.json").read_text())
    assert [section["status"] for section in session["sections"]] == ["done"] * 3, result.stdout[-3000:]
    errors = [case for case in session["cases"] if "error" in case and case["case"] != "matrix fp8"]
    assert not errors
    measured = {case["case"]: case for case in session["cases"]}
    assert measured["copy"]["us"] > 0 and measured["copy"]["bytes"] > 0
    assert measured["decode 1 x 1000"]["wall_us"] > 0 and measured["prefill 4096"]["flops"] > 0
    bars = [line for line in result.stdout.splitlines() if line.startswith("8B decode, batch 1")]
    assert len(bars) == 1 and "not measured" not in bars[0]


def test_each_section_is_kept_its_least_whatever_those_before_it_take() -> None:
    sections = choose_sections(None)
    for budget in (430.0, 200.0):
        elapsed, given = 0.0, {}
        session = Session.__new__(Session)
        for index, section in enumerate(sections):
            session._budget, session._began = budget, time.monotonic() - elapsed
            later = sum(other.least for other in sections[index + 1 :])
            given[section.name] = session._seconds_for(section, later)
            elapsed += given[section.name]  # each uses up all that it has
        assert elapsed <= budget - 5
        kept = sum(section.least for section in sections)
        for section in sections:
            least = section.least * min(1.0, (budget - 10) / kept)
            assert least * 0.95 <= given[section.name] <= section.seconds, (budget, section.name)


def test_sections_are_chosen_by_name_and_unknown_ones_are_named() -> None:
    assert [section.name for section in choose_sections("tune, facts")] == ["facts", "tune"]
    assert "tune" not in [section.name for section in choose_sections(None)]
    with pytest.raises(ValueError, match="'speed'; expected some of facts, warm"):
        choose_sections("facts,speed")


def test_what_a_killed_process_left_of_a_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    Recorder("limits", path, 10.0).add("copy", us=1.5)
    with open(path, "a") as file:
        file.write('{"section": "limits", "case": "re')
    assert read_cases(path) == [{"section": "limits", "case": "copy", "us": 1.5}]
    assert read_cases(tmp_path / "none") == []
