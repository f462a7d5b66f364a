"""`pageant bench page`, over short runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pageant.scripts import chromium
from pageant.scripts.bench import page
from pageant.scripts.cli import app


def test_it_tells_the_shares_of_a_core_and_the_first_paint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(page, "WARM_SECONDS", 0.5)
    command = ["bench", "page", "--runs", "1", "--seconds", "0.5", "--json", str(tmp_path / "found.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    for state in ("at rest", "under load"):
        for case, _ in page.CASES:
            assert found[f"{state}, {case}, % of a core"] >= 0
    assert found["log of steps, us per step of 256 rows"] > 0
    names = {"first contentful paint, ms", "page loaded by then, KB"}
    assert names <= found.keys() if chromium.CHROMIUM else not names & found.keys()
    if chromium.CHROMIUM:
        assert found["first contentful paint, ms"] > 0
        assert 10 < found["page loaded by then, KB"] < 300
