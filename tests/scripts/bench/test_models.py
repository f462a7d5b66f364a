"""Models and progress of the benchmarks."""

from __future__ import annotations

from pathlib import Path

from pageant.models.tokenization import Tokenization
from pageant.scripts.bench import models
from pageant.scripts.bench.progress import describe_seconds, rounds
from pageant.scripts.bench.workloads import WORKLOADS, end_id_of
from pageant.scripts.engine_options import DEMO_MODEL


def test_a_model_is_made_once_with_the_demos_tokenizer(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setitem(models.SHAPES, "small-long", models.SHAPES["small-long"] | {"num_hidden_layers": 1})
    path = models.checkpoint("small-long", tmp_path)
    assert Tokenization.from_checkpoint(path).encode("a list") and end_id_of(str(path)) == 4096
    made = (path / "model.safetensors").stat().st_mtime_ns
    assert models.checkpoint("small-long", tmp_path) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == made
    assert capsys.readouterr().err.count("making a model of random weights, small-long") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["small-long"]


def test_a_model_that_the_user_names_stays(monkeypatch):
    monkeypatch.setattr(models, "checkpoint", lambda shape: Path("/made") / shape)
    assert models.suit({"model": "mine"}, "small-long") == {"model": "mine"}
    assert models.suit({"model": str(DEMO_MODEL), "seed": 1}, "small-long") == {
        "model": "/made/small-long",
        "seed": 1,
    }


def test_rounds_say_how_far_they_are_and_how_long_the_rest_takes(capsys):
    assert list(rounds("pairs", 3)) == [0, 1, 2]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "pairs: round 1 of 3" and said[1].startswith("pairs: round 2 of 3, about 1 s to go")
    assert said[3] == "pairs: 3 rounds in 1 s"
    assert describe_seconds(200) == "3 min 20 s" and describe_seconds(59.6) == "60 s"


def test_a_workload_says_what_it_is():
    assert str(WORKLOADS["single"]) == "1 requests at once, prompts of 128 tokens, answers of 64"
