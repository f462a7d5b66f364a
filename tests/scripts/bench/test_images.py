"""The benchmark of images, in small."""

import json

import pytest
from typer.testing import CliRunner

from pageant.scripts.bench import images
from pageant.scripts.cli import app

FEW = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}


def test_both_models_and_transformers_answer_and_every_figure_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(images, "TEXT_SHAPE", images.TEXT_SHAPE | FEW | {"num_key_value_heads": 1})
    monkeypatch.setattr(images, "TOWER_SHAPE", images.TOWER_SHAPE | FEW | {"image_size": 56})
    small = ["--rounds", "1", "--output", "3", "--threads", "1", "--dtype", "float32"]
    result = CliRunner().invoke(app, ["bench", "images", *small, "--json", "-"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["seconds"]) == {*images.MODELS, "image", "transformers"}
    assert found["work"]["image_tokens"] == 16
    assert found["texts_image_model_over_text_model"] > 0 and found["transformers_over_pageant"] > 0
