"""`pageant bench router`, with few decisions."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from pageant.scripts.cli import app


def test_its_decisions_find_what_prompts_share(tmp_path):
    path = tmp_path / "found.json"
    options = ["--replicas", "3", "--tokens", "256", "--decisions", "400", "--json", str(path)]
    result = CliRunner().invoke(
        app, ["bench", "router", *options, "--warm-replicas", "2", "--warm-blocks", "40"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert 0.35 < found["hit_share"] <= 0.5, "half of each prompt is shared by one in 64"
    assert found["decisions_per_second"] > 0 and found["warm_seconds"] >= 0
