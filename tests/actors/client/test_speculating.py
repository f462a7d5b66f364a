"""`auto` is what the folder holds."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from pageant.actors.client.speculating import settle_speculation
from pageant.actors.runtime.topology import parse
from pageant.protocol.errors import TopologyError
from pageant.scripts.engine_options import DEMO_MODEL


def settled(speculation: object) -> object:
    return settle_speculation(parse({"speculation": speculation})).settings["speculation"]


@pytest.mark.parametrize("method", ["draft", "eagle", "medusa"])
def test_auto_is_the_method_of_the_folders_heads_or_model(method):
    folder = str(DEMO_MODEL / method)
    assert settled({"method": "auto", "model": folder, "tokens": 3}) == {
        "method": method,
        "model": folder,
        "tokens": 3,
    }


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("medusa_heads.0.0.linear.weight", "medusa"),
        ("blocks.1.layers.0.linear.weight", "medusa"),
        ("model.fc.weight", "eagle"),
        ("model.layers.0.mlp.fc.weight", "draft"),
    ],
)
def test_heads_are_known_by_their_tensors_as_others_name_them(tmp_path, name, method):
    save_file({name: torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert settled({"method": "auto", "model": str(tmp_path)})["method"] == method


def test_auto_without_a_model_is_n_grams_and_what_is_said_otherwise_stays():
    assert settled({"method": "auto"}) == {"method": "ngram"}
    assert settled({"method": "eagle", "model": str(DEMO_MODEL / "eagle")})["method"] == "eagle"
    assert settled(None) is None and settled("n-gram") == "n-gram"


@pytest.mark.parametrize(
    ("speculation", "place", "said"),
    [
        ({"method": "ngram", "token": 4}, "speculation.token", "did you mean 'tokens'"),
        (
            {"method": "ngram", "num_speculative_tokens": 4},
            "speculation.num_speculative_tokens",
            "'tokens'|: tokens",
        ),
        ({"method": "eagle", "model": str(DEMO_MODEL / "medusa")}, "speculation.method", "holds medusa"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_loads(speculation, place, said):
    with pytest.raises(TopologyError, match=said) as refused:
        settled(speculation)
    assert refused.value.place == place


def test_each_of_several_models_has_its_own():
    parsed = parse({"models": {"a": {"model": "x", "speculation": {"method": "auto"}}, "b": {"model": "y"}}})
    found = settle_speculation(parsed)
    assert found.models["a"].settings == {"speculation": {"method": "ngram"}}
    assert "speculation" not in found.models["b"].settings


def test_a_layer_of_the_models_own_checkpoint_needs_no_folder_and_takes_one():
    folder = str(DEMO_MODEL)
    assert settled({"method": "mtp", "tokens": 2}) == {"method": "mtp", "tokens": 2}
    assert settled({"method": "mtp", "model": folder})["model"] == folder
