"""Layers that draft (multi-token prediction) beside their formula, written out over a whole text at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.heads.mtp import MTPLayer, load_mtp_layer
from pageant.models.loading import load_decoder
from pageant.models.mtp import find_mtp
from pageant.models.placing import as_rows
from pageant.scripts.samples.mtp_model import MTPModel
from tests.models.ready.test_fp8 import written
from tests.mtp_models import random_mtp

FAMILIES = (
    *("glm4_moe", "glm4_moe_ungrouped", "deepseek_v3_grouped", "deepseek_v3_unpaired"),
    *("qwen3_next", "qwen3_next_other", "qwen3_5", "qwen3_5_moe"),
)


@pytest.fixture(scope="session")
def drafting(
    family: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[MTPModel, Path]]:
    """Return a function that makes and saves the family of a name with a layer that drafts, once a session."""
    made: dict[str, tuple[MTPModel, Path]] = {}

    def make(name: str) -> tuple[MTPModel, Path]:
        if name not in made:
            mtp, path = random_mtp(family(name).model), tmp_path_factory.mktemp(name)
            mtp.save(path)
            made[name] = mtp, path
        return made[name]

    return make


def _load(path: Path, **settings: Any) -> tuple[Any, MTPLayer]:
    """Return a model and its layer."""
    checkpoint = Checkpoint(path)
    target = load_decoder(checkpoint, kernels=kernels.load(settings.pop("backend", "reference")), **settings)
    return target, load_mtp_layer(checkpoint, target, 64, settings.get("quantization"))


@torch.inference_mode()
def _run(layer: MTPLayer, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Two passes: all but the last two tokens, and those two."""
    ((cache),) = layer.allocate_kv_caches(5, 4)
    found, length = [], len(following)
    for start, end in ((0, length - 2), (length - 2, length)):
        positions = torch.arange(start, end)
        batch = AttentionBatch(
            query_starts=torch.tensor([0, end - start], dtype=torch.int32),
            context_lengths=torch.tensor([end], dtype=torch.int32),
            block_tables=torch.tensor([[2, 0, 3, 4]], dtype=torch.int32),
            slots=torch.tensor([2, 0, 3, 4])[positions // 4] * 4 + positions % 4,
            positions=positions,
            max_query_length=end - start,
            max_context_length=end,
        )
        read = layer.first_hidden(hidden[start:end], None)
        found.append(layer.advance(following[start:end], read, positions, batch, cache))
    return torch.cat(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_layer_goes_on_from_the_models_hidden_states(
    drafting: Callable[[str], tuple[MTPModel, Path]], name: str
) -> None:
    mtp, path = drafting(name)
    target, layer = _load(path)
    token_ids = torch.randint(6, 331, (15,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        hidden = mtp.hidden(token_ids[None, :-1])
        expected = mtp.advance(token_ids[None, 1:], hidden)
        logits = mtp.logits(expected)[0]
    found = _run(layer, token_ids[1:], hidden[0])
    torch.testing.assert_close(found, expected[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer.logits(found), logits, atol=1e-4, rtol=1e-4)
    assert (expected - mtp.hidden(token_ids[None, 1:])).abs().max() > 0.1, "it is no layer of the model"
    attention = target.spec.attention
    kept = attention.num_kv_heads * attention.head_dim * (1 if attention.latent else 2)
    assert layer.kv_layout.bytes_per_block(4) == 4 * kept * 4, "keys and values of one layer, float32"


def test_the_c_kernels_compute_it_too(drafting: Callable[[str], tuple[MTPModel, Path]]) -> None:
    mtp, path = drafting("glm4_moe")
    _, layer = _load(path, backend="auto")
    token_ids = torch.randint(6, 331, (15,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        hidden = mtp.hidden(token_ids[None, :-1])
        expected = mtp.advance(token_ids[None, 1:], hidden)[0]
    torch.testing.assert_close(_run(layer, token_ids[1:], hidden[0]), expected, atol=1e-4, rtol=1e-4)


def test_it_is_quantised_with_its_model(drafting: Callable[[str], tuple[MTPModel, Path]]) -> None:
    _, path = drafting("glm4_moe")
    plain, int8 = (_load(path, quantization=one)[1] for one in (None, "int8"))
    assert int8.num_bytes < 0.6 * plain.num_bytes
    following, hidden = torch.randint(6, 331, (9,)), torch.randn(9, 96)
    similar = torch.nn.functional.cosine_similarity(
        _run(plain, following, hidden), _run(int8, following, hidden)
    )
    assert similar.min() > 0.99


def _changed(path: Path, folder: Path, change: dict[str, torch.Tensor | None]) -> Path:
    shutil.copytree(path, folder)
    tensors = load_file(folder / "model.safetensors") | change
    save_file(
        {name: tensor for name, tensor in tensors.items() if tensor is not None},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "glm4_moe",
            {"model.layers.3.eh_proj.weight": None},
            "missing tensors: model.layers.3.eh_proj.weight",
        ),
        (
            "deepseek_v3_grouped",
            {"model.layers.3.enorm.weight": torch.ones(3)},
            "model.layers.3.enorm.weight has shape [3]; expected [64]",
        ),
        ("qwen3_next", {"mtp.norm.weight": None}, "missing tensors: mtp.norm.weight"),
        ("qwen3_5", {"mtp.fc.bias": torch.ones(64)}, "unknown tensors: mtp.fc.bias"),
        (
            "glm4_moe",
            {"model.layers.4.hnorm.weight": torch.ones(96)},
            "a second layer that drafts (MTP), model.layers.4.*; expected one",
        ),
        (
            "qwen3_next",
            {"mtp.layers.1.input_layernorm.weight": torch.ones(64)},
            "a second layer that drafts (MTP), mtp.layers.1.*; expected one",
        ),
    ],
)
def test_a_layer_that_is_not_whole_is_refused_where_it_is_asked_for(
    drafting: Callable[[str], tuple[MTPModel, Path]],
    tmp_path: Path,
    name: str,
    change: dict[str, torch.Tensor | None],
    message: str,
) -> None:
    checkpoint = Checkpoint(_changed(drafting(name)[1], tmp_path / "changed", change))
    target = load_decoder(checkpoint, kernels=kernels.load("reference"))
    with pytest.raises(CheckpointError) as error:
        load_mtp_layer(checkpoint, target, 64)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glm4_moe", "no tensors model.layers.3.*; expected those of a layer that drafts (MTP)"),
        ("qwen3_next", "no tensors mtp.*; expected those of a layer that drafts (MTP)"),
        (
            "mixtral",
            "MixtralForCausalLM, of which no layer that drafts (MTP) is known here; expected a folder",
        ),
    ],
)
def test_a_checkpoint_without_one_is_refused(family: Callable[[str], Any], name: str, message: str) -> None:
    checkpoint = Checkpoint(family(name).path)
    target = load_decoder(checkpoint, kernels=kernels.load("reference"))
    with pytest.raises(CheckpointError) as error:
        load_mtp_layer(checkpoint, target, 64)
    assert message in str(error.value)


def test_a_layer_of_another_model_is_refused(
    drafting: Callable[[str], tuple[MTPModel, Path]], family: Callable[[str], Any]
) -> None:
    target = load_decoder(Checkpoint(family("qwen3_5").path), kernels=kernels.load("reference"))
    with pytest.raises(CheckpointError, match="hidden_size is 96; expected 64"):
        load_mtp_layer(Checkpoint(drafting("glm4_moe")[1]), target, 64)


def test_configurations_say_nothing_that_tensors_do_not(
    drafting: Callable[[str], tuple[MTPModel, Path]], tmp_path: Path
) -> None:
    """Published ones of Qwen3-Next do not count the layer; transformers keeps the count, and leaves the layer out."""
    folder = shutil.copytree(drafting("glm4_moe")[1], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["num_nextn_predict_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    assert _load(folder)[1].spec.num_layers == 1


@pytest.mark.parametrize("kind", ["block", "row", "tensor"])
@pytest.mark.parametrize("name", ["deepseek_v3_grouped", "glm4_moe", "qwen3_next"])
def test_a_layer_of_an_fp8_checkpoint_is_as_near_as_8_bits_are(
    drafting: Callable[[str], tuple[MTPModel, Path]], tmp_path: Path, name: str, kind: str
) -> None:
    """Compare each weight with the checkpoint dequantised. DeepSeek's has `eh_proj` dense, others do not."""
    dense = written(SimpleNamespace(path=drafting(name)[1]), tmp_path, kind, ("eh_proj",) * (kind == "block"))
    _, layer = _load(tmp_path)
    found = find_mtp(Checkpoint(tmp_path))
    kept = 0
    for weight, place in found.places.items():
        held = layer.weight(place)
        expected = as_rows(dense[found.tensors[weight].name].float(), place)
        if isinstance(held, QuantizedWeight):
            kept += 1
            assert (dequantize(held, torch.float32) - expected).norm() / expected.norm() < 0.006, weight
        elif place.plus == 0:
            torch.testing.assert_close(held, expected, rtol=1e-6, atol=1e-6)
    assert kept >= 6
    assert _run(layer, torch.arange(6, 15), torch.randn(9, layer.spec.hidden_size)).isfinite().all()
