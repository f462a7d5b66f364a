"""Files that deploy Pageant: the images' recipes, and the unit of systemd. Each is held against its own linter."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pageant
from tests.command_words import read_words

ROOT = Path(pageant.__file__).parent
UNIT = ROOT / "docs" / "examples" / "pageant.service"
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
RECIPES = ("Dockerfile", "Dockerfile.cuda")


def _unit() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: it comes for x86-64 Linux alone")
@pytest.mark.parametrize("name", RECIPES)
def test_the_linter_of_dockerfiles_finds_nothing(name):
    linted = subprocess.run([HADOLINT, ROOT / name], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: it comes for x86-64 Linux alone")
def test_the_linter_of_dockerfiles_bites():
    wrong = "FROM python:latest\nRUN cd /tmp && pip install torch\n"
    linted = subprocess.run([HADOLINT, "-"], input=wrong, capture_output=True, text=True, check=False)
    assert linted.returncode != 0 and {"DL3007", "DL3013"} <= set(re.findall(r"DL\d+", linted.stdout))


@pytest.mark.parametrize("name", RECIPES)
def test_an_image_serves_as_a_user_without_rights(name):
    lines = (ROOT / name).read_text().splitlines()
    before = lines.index("USER 10001")
    assert before < next(at for at, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    command = next(line for line in lines if line.startswith("CMD "))
    context = read_words(re.findall(r'"([^"]+)"', command))
    assert context.params["host"] == "0.0.0.0"
    # A build context that lacked one of these could not be installed.
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {"constraints.txt", "models", "docs", "README.md"} & set(ignored)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_systemd_takes_the_unit(tmp_path):
    """Verify the unit with an executable that is there in place of the installed one."""
    installed = shlex.split(_unit()["ExecStart"])[0]
    there = tmp_path / UNIT.name
    there.write_text(UNIT.read_text().replace(installed, sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", there], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    there.write_text(there.read_text().replace("KillMode=mixed", "KillMode=gently"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", there], capture_output=True, text=True, check=False
    )
    assert "kill mode" in verified.stderr


def test_the_unit_starts_a_server_and_lets_it_end_its_answers():
    unit = _unit()
    context = read_words(shlex.split(unit["ExecStart"])[1:])
    assert context.params["host"] == "127.0.0.1"
    assert int(unit["TimeoutStopSec"]) > context.params["drain_seconds"]
    assert (
        unit["KillMode"] == "mixed"
    )  # the other actors' processes must not have the signal before their root
    assert unit["Environment"] == f"HOME={unit['WorkingDirectory']}"
