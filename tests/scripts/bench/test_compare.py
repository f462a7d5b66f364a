"""Comparisons: what is compared, and where the figures go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pageant.scripts.bench import compare
from pageant.scripts.bench.compare import OUT, parsed

MODELS = ["model", "tiny-model"]


def test_a_whole_run_replaces_the_figures_of_the_page():
    options = parsed(MODELS)
    assert options.out == OUT and not options.partial


@pytest.mark.parametrize(
    "left", [["--groups", "bf16"], ["--beside", "vllm"], ["--starts", "0"]], ids=" ".join
)
def test_a_run_that_leaves_something_out_does_so_only_where_it_is_told(left, capsys):
    with pytest.raises(SystemExit):
        parsed([*MODELS, *left])
    said = capsys.readouterr().err
    assert " ".join(left) in said and "--out" in said
    options = parsed([*MODELS, *left, "--out", "part.json"])
    assert options.out == Path("part.json") and options.partial == [" ".join(left)]


@pytest.fixture
def ended(monkeypatch):
    """Measure nothing; a run is ended by whoever starts an engine that is in here."""
    ended = []

    def start(engine, *_):
        if engine in ended:
            raise KeyboardInterrupt
        return {"ready_seconds": 1.0}

    monkeypatch.setattr(compare, "startup", start)
    monkeypatch.setattr(compare, "compare", lambda group, *_: {key: {} for key in group.workloads})
    for name in ("machine", "machine_speed"):
        monkeypatch.setattr(compare, name, dict)
    monkeypatch.setattr(compare, "exit_when_asked", lambda: None)
    return ended


def test_a_run_that_is_ended_keeps_what_it_has_beside_the_figures(tmp_path, ended):
    out = tmp_path / "cpu.json"
    compare.main([*MODELS, "--out", str(out)])
    whole = json.loads(out.read_text())
    assert list(whole["workloads"]) == list(compare.GROUPS) and len(whole["startup"]) == 1 + len(
        compare.PEERS
    )
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.json"]
    ended.append("vllm")
    with pytest.raises(KeyboardInterrupt):
        compare.main([*MODELS, "--out", str(out)])
    assert json.loads(out.read_text()) == whole
    assert list(json.loads((tmp_path / "cpu.json.part").read_text())["startup"]) == ["pageant"]


def test_what_is_measured_again_takes_the_place_of_what_was(tmp_path, ended, monkeypatch):
    out = tmp_path / "cpu.json"
    compare.main([*MODELS, "--out", str(out)])
    whole = json.loads(out.read_text())
    monkeypatch.setattr(compare, "compare", lambda *_: {"overhead": {"pageant": {"seconds": 1.0}}})
    compare.main([*MODELS, "--out", str(out), "--groups", "tiny", "--starts", "0", "--update"])
    updated = json.loads(out.read_text())
    assert updated["workloads"].pop("tiny") == {"overhead": {"pageant": {"seconds": 1.0}}}
    (update,) = updated.pop("updates")
    assert "--groups tiny --starts 0 --update" in update["command"] and "machine" in update
    del whole["workloads"]["tiny"]
    assert updated == whole


class Timed:
    """An engine that takes twice as long with weights that are not quantised."""

    def __init__(self, name, model, workloads, *, quantization, home):
        self.seconds = {None: 2.0, "int8": 1.0}[quantization]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, workload):
        return self.seconds


def test_streams_of_quantised_weights_run_in_turn_with_those_of_ours_that_are_not(monkeypatch):
    monkeypatch.setattr(compare, "EngineProcess", Timed)
    monkeypatch.setattr(compare, "PAUSE_SECONDS", 0)
    group = compare.GROUPS["int8"]
    found = compare.compare(group, Path("model"), ["pageant", "vllm"], 3, Path("home"))
    engines = {name: row["seconds"] for name, row in found["single"].items()}
    assert engines == {"pageant": 1.0, "vllm": 1.0, compare.UNQUANTIZED: 2.0}
    assert set(found["batch"]) == {"pageant", "vllm"}
    plain = compare.compare(compare.GROUPS["bf16"], Path("model"), ["pageant"], 1, Path("home"))
    assert set(plain["single"]) == {"pageant"}
