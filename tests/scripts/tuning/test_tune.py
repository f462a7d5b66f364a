"""`pageant tune` as it is called: what it refuses, and one whole tune of the demo model."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import yaml

from pageant.scripts.cli import main
from pageant.scripts.commands.tune import distinct
from pageant.scripts.engine_options import DEMO_MODEL
from pageant.scripts.planning.calibration import Calibration
from pageant.scripts.planning.outcome import RequestTimes, summed_up
from pageant.scripts.replay.costs import Fitted, StepCosts
from pageant.scripts.tuning.measuring import Measurements
from pageant.scripts.tuning.space import Candidate, Layout

SLO = ("--slo", "ttft=60s")


def tune(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr("pageant.scripts.planning.calibration.TOGETHER", (1, 2))
    monkeypatch.setattr("pageant.scripts.planning.calibration.USERS", ((2, 4),))
    monkeypatch.setattr("sys.argv", ["pageant", "tune", *map(str, arguments)])
    try:
        return main()
    except SystemExit as end:  # typer ends the process by itself
        return int(end.code or 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--slo'"),
        (["--slo", "tfft=5ms"], "no measure 'tfft'"),
        (["--slo", "ttft=5"], "'ttft=5' is no bound"),
        ([*SLO, "--rate", "0"], "rate is 0; expected requests per second above 0, such as 20 or 20/s"),
        ([*SLO, "--rate", "many/s"], "rate is many/s; expected requests per second"),
        ([*SLO, "--workload", "chats"], "no workload 'chats'"),
        (
            [*SLO, "--workload", "chat", "--input-tokens", "9"],
            "--workload and --input-tokens each say the load",
        ),
        ([*SLO, "--recording", "nowhere.recording"], "nowhere.recording: No such file"),
        ([*SLO, "--input-tokens", "x"], "input_tokens is 'x'"),
        (["/nowhere/at/all", *SLO], "/nowhere/at/all"),
        ([*SLO, "--allow-quantization", "int9"], "no quantisation 'int9'"),
        ([*SLO, "--trials", "0"], "trials is 0; expected at least 1"),
        ([*SLO, "--candidates", "0"], "candidates is 0; expected at least 1"),
        ([*SLO, "--seconds", "0"], "seconds is 0"),
        ([*SLO, "--tensor-parallel", "2"], "tensor_parallel is not tuned"),
        ([*SLO, "--speculation", '{"method": "ngram"}'], "speculation is not tuned"),
        ([*SLO, "--replicas", "64"], "64 replicas with 1 threads each were asked for"),
        ([*SLO, "--output", "/nowhere/tuned.yaml"], "/nowhere/tuned.yaml is in no folder"),
        ([*SLO, "--output", __file__], "exists; expected a new file, or --overwrite"),
    ],
)
def test_a_tune_that_cannot_be_made_is_refused(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert tune(monkeypatch, *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_candidates_that_differ_in_the_number_of_requests_alone_are_run_once():
    one, other = Candidate(Layout(1, 2)), Candidate(Layout(1, 2), policy="shortest")
    alike = Candidate(Layout(1, 2), max_num_seqs=8)
    assert distinct([one, alike, other], 2) == [one, other]


SMALL = (
    *("--threads", 1, "--replicas", 1, "--max-model-len", 256, "--set", "num_blocks=256"),
    *("--max-num-seqs", 16, "--max-num-batched-tokens", 256, "--trials", 2, "--candidates", 1),
    *("--rate", "8/s", "--input-tokens", "8:16", "--output-tokens", 4, "--seconds", 0.5),
)


def test_the_demo_model_is_tuned_and_the_topology_says_so(capsys, monkeypatch, tmp_path):
    """With bounds that any machine holds, the defaults do."""
    path, figures = tmp_path / "tuned.yaml", tmp_path / "tuned.json"
    assert tune(monkeypatch, DEMO_MODEL, *SLO, *SMALL, "--output", path, "--json", figures) == 0
    said = capsys.readouterr().out
    assert f"{path} holds ttft=60000ms: 1 x 1 thread, seqs 16, tokens 256" in said and " binds: " in said
    written = yaml.safe_load(path.read_text())
    assert written.items() >= {"model": str(DEMO_MODEL), "max_num_seqs": 16, "num_blocks": 256}.items()
    found = json.loads(figures.read_text())
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert found["answer"] == found["confirmed"][-1]["settings"] and not found["confirmed"][-1]["broken"]
    requests = [one["requests"] for one in (*found["tried"], *found["confirmed"])]
    assert min(requests) > 0 and all(one["unserved"] == 0 for one in found["tried"])


def test_a_level_that_nothing_holds_is_told_and_nothing_is_written(capsys, monkeypatch, tmp_path):
    """Steps and real runs are made up here: each request is answered after a second."""

    def slow(path, requests, warm_up, replicas):
        times = [RequestTimes(one.at, len(one.prompt)) for one in requests]
        for one in times:
            one.output([one.arrived_at + 1.0, one.arrived_at + 1.1])
        return summed_up(times, replicas, (0.0,), 0.0, 0), times

    costs = StepCosts()
    costs.fitted = Fitted(constant=0.01, token=1e-3)
    header = SimpleNamespace(num_blocks=256, block_size=16, windows=(None,), actors={})
    load = SimpleNamespace(header=header, costs=costs, settings=lambda: {"max_model_len": 256})
    measured = Measurements({(Layout(1, 1), None): Calibration(load)}, {})
    monkeypatch.setattr(
        "pageant.scripts.commands.tune.measure", lambda settings, space, folder: (measured, space)
    )
    monkeypatch.setattr("pageant.scripts.commands.tune.serve", slow)
    path = tmp_path / "nothing.yaml"
    assert tune(monkeypatch, DEMO_MODEL, "--slo", "ttft=5ms", *SMALL, "--output", path) == 1
    said = capsys.readouterr().out
    assert "nothing that was tried holds ttft=5ms; nearest comes 1 x 1 thread" in said
    assert "no: ttft 200.00x" in said and " binds: " in said and "what would help: " in said
    assert not path.exists()
