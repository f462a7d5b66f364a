"""Checkpoints under another configuration."""

import json
from pathlib import Path

import pytest

from pageant import models
from pageant.models.checkpoint import Checkpoint, CheckpointError
from pageant.models.overriding import override_config


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": 10, "text_config": {"a": 1, "b": 2}}))
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def config(path):
    return json.loads((path / "config.json").read_text())


def test_values_are_laid_over_and_sections_key_by_key(folder, tmp_path):
    made = override_config(
        folder, {"vocab_size": 9, "text_config": {"b": 3}, "new": {"x": 1}}, cache=tmp_path
    )
    assert config(made) == {"vocab_size": 9, "text_config": {"a": 1, "b": 3}, "new": {"x": 1}}
    assert (made / "model.safetensors").read_bytes() == b"weights"
    assert config(folder) == {"vocab_size": 10, "text_config": {"a": 1, "b": 2}}


def test_the_same_overrides_give_the_same_folder_and_others_another(folder, tmp_path):
    first = override_config(folder, {"x": 1}, cache=tmp_path / "c")
    assert override_config(folder, {"x": 1}, cache=tmp_path / "c") == first
    assert override_config(folder, {"x": 2}, cache=tmp_path / "c") != first
    (folder / "tokenizer.json").write_text("{}")
    later = override_config(folder, {"x": 1}, cache=tmp_path / "c")
    assert later != first and (later / "tokenizer.json").is_file()
    assert len(list((tmp_path / "c").iterdir())) == 3  # and nothing half-made


@pytest.mark.parametrize(
    "said,overrides,found",
    [
        (
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2}},
            {"rope_parameters": {"rope_type": "yarn", "factor": 4}},
            {"rope_theta": 5.0, "rope_parameters": {"rope_type": "yarn", "factor": 4}},
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
            {"rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 5.0}},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5.0}},
            {"rope_theta": 7.0},
            {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 7.0}},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5.0}},
            {"rope_scaling": None},
            {"rope_parameters": {"rope_theta": 5.0}},
        ),
        (
            {"rope_theta": 5.0},
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2}},
        ),
    ],
)
def test_rotary_embeddings_are_overridden_in_old_words_and_in_new(tmp_path, said, overrides, found):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(said))
    assert config(override_config(path, overrides, cache=tmp_path / "c")) == found


def test_the_configuration_of_another_folder(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"vocab_size": 4}))
    assert config(override_config(folder, {"x": 1}, other, tmp_path / "c")) == {"vocab_size": 4, "x": 1}
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        override_config(folder, {}, tmp_path)


def test_a_longer_context_by_scaled_rotations(tmp_path):
    demo = Path(models.__file__).parent / "demo"
    before = Checkpoint(demo).spec().max_model_len
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": before}
    made = override_config(demo, {"rope_parameters": {"rope_theta": 1e6, **scaling}}, cache=tmp_path)
    assert Checkpoint(made).spec().max_model_len == 4 * before
