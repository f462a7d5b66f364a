"""The benchmark of layers with windows, in small."""

import json

from typer.testing import CliRunner

from pageant.scripts.cli import app


def test_only_layers_in_groups_give_back():
    small = ["--window", "32", "--requests", "3", "--prompt", "200", "--output", "24", "--memory", "4MiB"]
    result = CliRunner().invoke(
        app, ["bench", "windows", *small, "--rounds", "1", "--threads", "1", "--json", "-"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["grouped"]["blocks_given_back"] > 100
    assert found["whole"]["blocks_given_back"] == 0
    assert found["grouped"]["tokens_per_step"] >= found["whole"]["tokens_per_step"]
