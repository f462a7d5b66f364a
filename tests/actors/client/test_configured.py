"""A checkpoint's configuration as settings change it, in Python, in YAML and on a command line."""

import json
import shutil
from pathlib import Path

import pytest

from pageant import models
from pageant.actors.client.adapters import adapter_folder
from pageant.actors.client.cast import model_settings
from pageant.actors.client.settings import session_of, topology_of
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import TopologyError

DEMO = Path(models.__file__).parent / "demo"
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def settings(**given):
    return model_settings(topology_of(DEMO, None, given))


def test_overrides_reach_everybody_as_a_checkpoint():
    found = settings(hf_overrides={"rope_parameters": YARN})
    assert found["max_model_len"] == 2048 and found["tokenizer"] == found["model"]
    assert json.loads((Path(found["model"]) / "config.json").read_text())["rope_parameters"] == YARN
    assert settings(hf_overrides={}, hf_config_path=None)["model"] == str(DEMO.absolute())


def test_the_configuration_of_another_folder(tmp_path):
    other = json.loads((DEMO / "config.json").read_text()) | {"max_position_embeddings": 512}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(other))
    assert settings(hf_config_path=tmp_path / "other")["max_model_len"] == 512


@pytest.mark.parametrize(
    "given,said",
    [
        ({"hf_overrides": [1]}, "hf_overrides: found"),
        ({"hf_overrides": lambda config: config}, "hf_overrides: found"),
        ({"hf_overrides": {"x": {1, 2}}}, "expected JSON"),
        ({"hf_config_path": 3}, "hf_config_path: found 3"),
    ],
)
def test_what_is_no_configuration_is_refused_by_its_name(given, said):
    with pytest.raises((TopologyError, ValueError), match=said):
        settings(**given)


def test_an_overridden_configuration_is_checked_as_any():
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        settings(hf_overrides={"num_hidden_layers": 0})


def test_an_adapter_is_named_by_its_folder_or_by_a_hub_id(tmp_path, monkeypatch):
    (tmp_path / "org" / "local").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pageant.actors.client.adapters.resolve", lambda name: Path("/snapshots") / name)
    assert adapter_folder("org/remote") == "/snapshots/org/remote"
    for local in ("org/local", "/nowhere/at/all", "nowhere", "./org/remote", "a/b/c"):
        assert adapter_folder(local) == local


QUANTISED = Path(__file__).parents[2] / "models" / "ready" / "fixtures"


@pytest.mark.parametrize(
    "model,wanted,found",
    [
        (DEMO, None, None),
        (DEMO, "int8", "int8"),
        (QUANTISED / "gptq", None, None),
        (QUANTISED / "gptq", "gptq", None),
        (QUANTISED / "gptq", "gptq_marlin", None),
        (QUANTISED / "ct_w4a16", "compressed-tensors", None),
    ],
)
def test_a_checkpoints_own_quantization_may_be_named(model, wanted, found):
    given = {"quantization": wanted, "skip_tokenizer_init": True}
    assert model_settings(topology_of(model, None, given))["quantization"] == found


@pytest.mark.parametrize(
    "model,wanted,said",
    [
        (DEMO, "gptq", "quantization: found 'gptq'; expected int8 or int4, the checkpoint is not quantised"),
        (QUANTISED / "gptq", "awq", "expected int8 or int4, or gptq, which the checkpoint is"),
    ],
)
def test_another_quantization_than_the_checkpoints_is_refused(model, wanted, said):
    with pytest.raises(TopologyError, match=said):
        model_settings(topology_of(model, None, {"quantization": wanted, "skip_tokenizer_init": True}))


def options(role, **given):
    """An actor's options, of a session that is not started."""
    session = session_of(None, None, given) if "models" in given else session_of(DEMO, None, given)
    return next(json.loads(one.options) for one in session.resolved.actors if role in one.name)


def test_actors_are_told_what_a_setting_names(tmp_path, monkeypatch):
    """A template's file is not its text, and a hub id is no folder."""
    template, folder = tmp_path / "mine.jinja", tmp_path / "snapshot"
    template.write_text("{{ messages[0].content }}")
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors", "draft", "eagle", "medusa"))
    monkeypatch.setattr("pageant.actors.client.tokenizers.resolve", lambda name, revision: folder)
    given = {"chat_template": str(template), "tokenizer": "org/tokenizer"}
    for found in (
        options("tokenizer", **given),
        options("tokenizer", models={"one": {"model": str(DEMO), **given}}),
    ):
        assert found["chat_template"] == "{{ messages[0].content }}" and found["tokenizer"] == str(folder)
    assert options("grammar", **given)["tokenizer"] == str(folder)
    assert options("executor", quantization="int8")["quantization"] == "int8"
