"""Written checkpoints: their weights read back, their files, and what is refused before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from pageant.models import Checkpoint, CheckpointError
from pageant.models.architectures import ARCHITECTURES
from pageant.models.quantizing import quantizer
from pageant.models.quantizing.quantizer import quantize
from pageant.models.quantizing.schemes import SCHEMES
from pageant.protocol.errors import ArgumentError, ConfigurationError
from tests.models.quantizing.architectures import ONE_OF_EACH, RECURRENT_AT_RANDOM, REFUSED, ROUTED_AT_RANDOM
from tests.pooled_models import save_model

BYTES = {"w4a16": (4, 32), "int4": (4, 32), "w8a16": (8, None), "w8a8": (8, None), "int8": (8, 32)}
"""Bits of each scheme, and the inputs of this model that share a scale: 64 and 96 are no multiples of 128 or 64."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_is_read_back_exactly_and_is_near(
    llama: Path, tmp_path: Path, read_back: Any, tensors: Any, scheme: str
) -> None:
    written = quantize(llama, tmp_path / "out", scheme)
    Checkpoint(written.path).check()
    before, after, found = tensors(llama), tensors(written.path), read_back(written.path)
    bits, group = BYTES[scheme]
    assert len(found) == written.matrices == 14
    error = norm = 0.0
    for module, weight in found.items():
        original = before.pop(f"{module}.weight").float()
        scales = after[f"{module}.weight_scale"]
        assert scales.shape == (len(original), original.shape[1] // (group or original.shape[1]))
        assert scales.dtype == torch.bfloat16 and (scales > 0).all()
        per_input = scales.float().repeat_interleave(original.shape[1] // scales.shape[1], 1)
        codes = weight / per_input
        assert torch.equal(codes, codes.round()) and codes.min() >= -(1 << bits - 1)
        clipped = (codes == codes.max()) | (codes == codes.min())
        assert ((weight - original).abs() <= per_input * 0.501)[~clipped].all()
        error += float((weight - original).square().sum())
        norm += float(original.square().sum())
    assert written.error == pytest.approx((error / norm) ** 0.5, rel=1e-3)
    assert written.error < (0.1 if bits == 4 else 0.01)
    # All others are as they were.
    assert before.keys() == after.keys() & before.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_architecture_can_be_written_and_read(
    family: Callable[[str], Any], pages: Any, tmp_path: Path, read_back: Any, name: str
) -> None:
    model = family(name)
    written = quantize(model.path, tmp_path / "out", "w8a8")
    checkpoint = Checkpoint(written.path)
    checkpoint.check()
    assert checkpoint.ready is not None and not checkpoint.ready.dense
    kept = {"embedding.weight", "lm_head.weight", "router.weight", "shared_switch.weight"}
    assert not {weight for _, weight in checkpoint.ready.forms} & kept
    logits = []
    for folder in (model.path, written.path):
        decoder = type(model)(folder, model.model).load("float32")
        with torch.inference_mode():
            logits.append(pages(decoder).step({"a": list(range(3, 24))})["a"])
    expected, found = logits
    most = 0.25 if name in RECURRENT_AT_RANDOM else 0.15 if name in ROUTED_AT_RANDOM else 0.05
    # No state is behind the first token.
    assert (found[0] - expected[0]).square().mean() < 0.05**2 * expected[
        0
    ].square().mean() or name in ROUTED_AT_RANDOM
    assert (found - expected).square().mean() < most**2 * expected.square().mean()


def test_every_architecture_is_among_them(family: Callable[[str], Any]) -> None:
    (mark,) = test_every_architecture_can_be_written_and_read.pytestmark
    written = {Checkpoint(family(name).path).config["architectures"][0] for name in mark.args[1]}
    assert written == set(ARCHITECTURES) - REFUSED


def test_configuration_tokenizer_and_nothing_pickled_come_along(llama: Path, tmp_path: Path) -> None:
    written = quantize(llama, tmp_path / "out", "w4a16", group_size=32).path
    assert {file.name for file in written.iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"),
    }
    config = json.loads((written / "config.json").read_text())
    section = config.pop("quantization_config")
    assert config == json.loads((llama / "config.json").read_text())
    assert section["quant_method"] == "compressed-tensors" and section["format"] == "pack-quantized"
    assert section["ignore"] == ["lm_head"]
    weights = section["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["strategy"], weights["group_size"]) == (4, "group", 32)


def test_activations_are_said_to_be_rounded_by_token_in_w8a8(llama: Path, tmp_path: Path) -> None:
    config = json.loads((quantize(llama, tmp_path / "out", "w8a8").path / "config.json").read_text())
    section = config["quantization_config"]
    group = section["config_groups"]["group_0"]
    assert section["format"] == group["format"] == "int-quantized"
    assert group["input_activations"]["strategy"] == "token" and group["input_activations"]["dynamic"]
    assert group["weights"]["strategy"] == "channel" and group["weights"]["group_size"] is None


def test_several_files_have_an_index_and_modules_stay_in_one(
    llama: Path, tmp_path: Path, read_back: Any
) -> None:
    whole = quantize(llama, tmp_path / "whole", "int4").path
    parted = quantize(llama, tmp_path / "parted", "int4", shard_bytes=20_000).path
    files = sorted(parted.glob("*.safetensors"))
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(file.stat().st_size < 25_000 for file in files)
    index = json.loads((parted / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == Checkpoint(whole).num_bytes == Checkpoint(parted).num_bytes
    for module in {name.rpartition(".")[0] for name in index["weight_map"] if "_packed" in name}:
        assert len({file for name, file in index["weight_map"].items() if name.startswith(f"{module}.")}) == 1
    expected, found = read_back(whole), read_back(parted)
    assert all(torch.equal(found[module], weight) for module, weight in expected.items())
    # The library that others read with finds every tensor aligned and whole.
    for file in files:
        with safe_open(file, framework="pt") as opened:
            assert all(opened.get_tensor(name).numel() for name in opened.keys())  # noqa: SIM118


def test_ignored_modules_stay_as_they_are_and_are_listed(
    llama: Path, tmp_path: Path, tensors: Any, read_back: Any
) -> None:
    ignore = ("re:.*self_attn.[qkv]_proj", "model.layers.1.mlp.down_proj")
    written = quantize(llama, tmp_path / "out", "int8", ignore=ignore)
    assert written.matrices == 14 - 6 - 1
    Checkpoint(written.path).check()
    found = read_back(written.path)
    assert "model.layers.0.self_attn.q_proj" not in found and "model.layers.0.mlp.down_proj" in found
    before, after = tensors(llama), tensors(written.path)
    for name in ("model.layers.1.self_attn.v_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        assert torch.equal(before[name], after[name])
    section = json.loads((written.path / "config.json").read_text())["quantization_config"]
    assert len(section["ignore"]) == 8 and "model.layers.0.self_attn.k_proj" in section["ignore"]


def test_progress_counts_every_matrix_once(llama: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    quantize(llama, tmp_path / "out", "w8a16", progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(done, 14) for done in range(1, 15)]
    assert len({name for *_, name in calls}) == 14


# --- refused ---


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"scheme": "w3a16"}, "scheme: found 'w3a16'; expected one of w4a16, w8a16, w8a8, int8, int4"),
        ({"group_size": 48}, "group-size: found 48; expected a multiple of 32, or -1 for whole rows"),
        ({"group_size": 0}, "group-size: found 0; expected a multiple of 32"),
        ({"group_size": -2}, "group-size: found -2; expected a multiple of 32"),
        ({"group_size": 64}, "found 64, but model.layers.0.mlp.down_proj has 96 inputs"),
        ({"scheme": "int4", "group_size": 64}, "found 64; expected 32, which int4 always has"),
        ({"scheme": "w8a8", "group_size": 32}, "expected none, since w8a8 has a scale for each row"),
        ({"ignore": ["model.layers.9.mlp"]}, "ignore: found 'model.layers.9.mlp', which names no linear map"),
        ({"ignore": ["re:("]}, "ignore: found 're:('; expected a regular expression ("),
        ({"ignore": ["re:(a+)+b"]}, "without repetitions of repetitions"),
        ({"ignore": ["re:.*q_proj"]}, "q_proj, but not model.layers.0.self_attn.k_proj, model.layers.0.self"),
        ({"ignore": ["re:.*"]}, "ignore: found entries that name every linear map"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_by_name(
    llama: Path, tmp_path: Path, arguments: dict[str, Any], found: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        quantize(llama, tmp_path / "out", **{"scheme": "w4a16", **arguments})
    assert found in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_never_written_into(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="out: something that is there already; expected a new folder"):
        quantize(llama, tmp_path / "out", "w4a16")
    with pytest.raises(CheckpointError, match="nowhere: no such folder; expected the folder to write into"):
        quantize(llama, tmp_path / "nowhere" / "out", "w4a16")
    with pytest.raises(CheckpointError, match="something that is there already"):
        quantize(llama, llama, "w4a16")


def test_a_checkpoint_that_is_quantised_is_not_quantised_again(llama: Path, tmp_path: Path) -> None:
    once = quantize(llama, tmp_path / "once", "w8a16").path
    with pytest.raises(
        CheckpointError, match=r"quantised already \(compressed-tensors\); expected a model's"
    ):
        quantize(once, tmp_path / "twice", "w4a16")
    assert [folder.name for folder in tmp_path.iterdir()] == ["once"]


def test_gguf_files_are_refused(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "is_gguf", property(lambda _: True))
    monkeypatch.setattr(Checkpoint, "check", lambda _: None)
    with pytest.raises(CheckpointError, match="a GGUF file; expected a checkpoint of safetensors"):
        quantize(llama, tmp_path / "out", "w4a16")


def test_an_embedding_model_keeps_its_pooling(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "bert", pooling="mean", dense=24)
    written = quantize(tmp_path / "model", tmp_path / "out", "w8a16").path
    found, expected = Checkpoint(written).pooling, Checkpoint(tmp_path / "model").pooling
    assert found is not None and expected is not None
    assert (found.pool, found.size, len(found.steps)) == (expected.pool, expected.size, len(expected.steps))
    dense = (folder / "2_Dense" / "model.safetensors" for folder in (written, tmp_path / "model"))
    assert len({file.read_bytes() for file in dense}) == 1


def test_encoders_are_not_calibrated(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "bert", pooling="mean")
    with pytest.raises(
        CheckpointError, match="an encoder, whose tokens see those that follow; expected a decoder"
    ):
        quantize(tmp_path / "model", tmp_path / "out", "w8a16", calibrate=tmp_path / "texts.jsonl")


def test_models_that_transformers_runs_are_refused(family: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="OPTForCausalLM, which transformers runs"):
        quantize(family("opt").path, tmp_path / "out", "w8a8")


def test_numbers_that_are_not_finite_are_refused_and_leave_nothing(
    edited: Callable[..., Path], tensors: Any, tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    broken = torch.zeros(96, 64, dtype=torch.bfloat16)
    broken[3, 5] = torch.nan
    with pytest.raises(CheckpointError, match=f"{name} has numbers that are not finite"):
        quantize(edited(tensors={name: broken}), tmp_path / "out", "w4a16")
    assert [folder.name for folder in tmp_path.iterdir()] == ["edited"]


def test_a_full_disk_is_known_beforehand(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("pageant.models.quantizing.folder.shutil.disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"0\.00 GB free; expected"):
        quantize(llama, tmp_path / "out", "w4a16")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError])
def test_what_is_interrupted_half_way_is_never_there(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    calls, seen = [], []

    def pack(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            (folder,) = tmp_path.iterdir()
            seen.extend([folder.name, (folder / "config.json").exists()])
            raise raised("stopped")
        return original(*arguments)

    original = quantizer.pack
    monkeypatch.setattr(quantizer, "pack", pack)
    with pytest.raises(ConfigurationError if raised is OSError else raised, match="stopped"):
        quantize(llama, tmp_path / "out", "w4a16")
    # Nor would the folder have been a checkpoint if the process had ended there.
    assert ".out.incomplete-" in seen[0] and seen[1] is False
    assert not list(tmp_path.iterdir())
