"""The benchmark of plans beside servers, in small."""

import json

import pytest
from typer.testing import CliRunner

from pageant.protocol.errors import BadRequest
from pageant.scripts.cli import app
from pageant.scripts.engine_options import DEMO_MODEL


def test_a_plan_is_compared_with_what_a_server_does(monkeypatch):
    monkeypatch.setattr("pageant.scripts.planning.calibration.TOGETHER", (1, 2))
    monkeypatch.setattr("pageant.scripts.planning.calibration.USERS", ((2, 4),))
    small = ["--requests", "3", "--rounds", "1", "--replicas", "1", "--workloads", "chat"]
    model = ["--model", str(DEMO_MODEL), "--set", "kv_cache_memory=64MiB", "--cores", "1"]
    result = CliRunner().invoke(app, ["bench", "plan", *small, *model, "--json", "-"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["comparisons"]
    assert (row["replicas"], row["workload"]) == ("1", "chat")
    assert set(row["planned"]) == set(row["real"]) == set(row["planned_over_real"])
    assert all(value > 0 for kind in ("planned", "real") for value in row[kind].values())
    ((planned,), (real,)) = row["turns"].values()
    assert row["planned_over_real"]["whole_ms"] == pytest.approx(
        planned["whole_ms"] / real["whole_ms"], abs=2e-3
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "two"], "replicas is 'two'"),
        (["--replicas", "3", "--cores", "2"], "3 replicas on 2 cores"),
        (["--replicas", "2+1", "--cores", "2"], "3 replicas on 2 cores"),
        (["--replicas", "1+0"], "replicas is '1+0'; expected numbers such as 1,2 or 1+1"),
        (["--share", "1.5"], "share is 1.5"),
        (["--workloads", "chit"], "no workload 'chit'"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(arguments, message):
    result = CliRunner().invoke(app, ["bench", "plan", *arguments])
    assert isinstance(result.exception, BadRequest) and message in str(result.exception)
