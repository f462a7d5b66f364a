"""The benchmark of recurrent layers, in small."""

import json

import pytest
from typer.testing import CliRunner

from pageant.scripts.bench import recurrent
from pageant.scripts.cli import app


def test_both_engines_answer_and_every_figure_is_there(monkeypatch: pytest.MonkeyPatch):
    few = {"hidden_size": 64, "num_hidden_layers": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    monkeypatch.setattr(recurrent, "SHAPE", recurrent.SHAPE | few)
    small = ["--prompt", "256", "--own", "4", "--output", "3", "--rounds", "1", "--memory", "64MiB"]
    result = CliRunner().invoke(app, ["bench", "recurrent", *small, "--threads", "1", "--json", "-"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["seconds"]) == {
        *("pageant_new", "pageant_repeated", "pageant_step", "transformers_new", "transformers_step")
    }
    assert found["pageant_prefill_tokens_per_second"] > 0 and found["new_over_repeated"] > 0
