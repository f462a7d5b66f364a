"""The throughput benchmark, in small."""

import json

from typer.testing import CliRunner

from pageant.scripts.bench import workloads
from pageant.scripts.cli import app
from pageant.scripts.engine_options import DEMO_MODEL


def test_figures_of_every_run_are_reported_as_json(monkeypatch):
    monkeypatch.setitem(workloads.WORKLOADS, "batch", workloads.Workload(4, 8, 20, 4))
    sizes = ["--set", "threads=1", "--set", "num_blocks=64"]
    arguments = ["bench", "throughput", "--model", str(DEMO_MODEL), *sizes, "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["workload"] == "batch" and len(figures["pageant"]["runs"]) == 3
