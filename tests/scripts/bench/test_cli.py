"""`pageant bench`: every benchmark by its name."""

import json

import pytest
from typer.testing import CliRunner

from pageant.scripts.cli import app
from pageant.scripts.commands.bench import BENCHMARKS
from pageant.scripts.report import publish, table


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_command_that_takes_json(name):
    result = CliRunner().invoke(app, ["bench", name, "--help"])
    assert result.exit_code == 0, result.output
    assert "--json" in result.output


def test_an_unknown_benchmark_is_refused_by_name():
    result = CliRunner().invoke(app, ["bench", "nothing"])
    assert result.exit_code == 2
    assert "No such command 'nothing'" in result.output


def test_figures_go_to_a_file_beside_the_lines(tmp_path, capsys):
    publish({"rows": 3}, table(["rows", "us"], [[3, 1.5], [4096, 20]]), tmp_path / "found.json")
    assert capsys.readouterr().out.splitlines() == ["rows   us", "3     1.5", "4096   20"]
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["rows"] == 3 and written["machine"]["date"]


def test_a_workload_runs_on_the_packaged_model(tmp_path):
    """Run on the demo model, which knows fewer tokens than those that are compared."""
    command = ["bench", "throughput", "--workload", "single", "--runs", "1", "--set", "threads=1"]
    result = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "found.json")])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "found.json").read_text())["pageant"]["output_tokens_per_second"] > 0
