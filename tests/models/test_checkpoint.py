"""Checkpoints: where they are found, and which weight files are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageant.models import Checkpoint, CheckpointError, resolve
from tests.models.small_checkpoints import change_tensors, complaint, write_config


def test_a_whole_checkpoint_passes(folder: Path, any_family: Any) -> None:
    Checkpoint(folder).check()
    Checkpoint(any_family.path).check()


def test_reading_a_checkpoint_loads_neither_torch_nor_transformers(folder: Path) -> None:
    code = (
        "import sys; from pageant.models import Checkpoint;"
        f"Checkpoint({str(folder)!r}).check(); sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone: no such folder; expected a folder with config\.json"):
        resolve(str(tmp_path / "gone"))
    assert "gone: no such folder" in complaint(tmp_path / "gone")


def test_a_file_is_not_a_checkpoint(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors: a file; expected .* Name the folder"):
        resolve(str(folder / "model.safetensors"))
    assert "a file" in complaint(folder / "model.safetensors")


def test_a_local_folder_is_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve(str(folder)) == folder
    assert resolve(f"~/{folder.name}") == folder


def test_a_model_that_the_hub_does_not_give_is_named_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise ConnectionError("the network is down\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(CheckpointError) as error:
        resolve("some-lab/some-model")
    assert "some-lab/some-model: no such folder here" in str(error.value)
    assert "ConnectionError: the network is down)" in str(error.value)
    assert "HF_HUB_OFFLINE" in error.value.remedy


def test_only_descriptions_and_safetensors_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, list[str]] = {}

    def download(_: str, **patterns: list[str]) -> str:
        asked.update(patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve("some-lab/some-model") == tmp_path
    wanted = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "chat_template.jinja"]
    unwanted = ["pytorch_model.bin", "modeling.py", "onnx/model.safetensors", "consolidated.safetensors"]
    matched = [
        name
        for name in wanted + unwanted
        if any(fnmatch(name, pattern) for pattern in asked["allow_patterns"])
        and not any(fnmatch(name, pattern) for pattern in asked["ignore_patterns"])
    ]
    assert matched == wanted


def test_no_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "no weights; expected model.safetensors or model.safetensors.index.json" in complaint(folder)


def test_pickled_weights_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = complaint(folder)
    assert "only pickled weights (pytorch_model.bin)" in message and "never read" in message


def split(folder: Path) -> None:
    """Make two shards and an index of the one weight file."""
    tensors = load_file(folder / "model.safetensors")
    names = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in names if names[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "model.safetensors").unlink()


def test_shards_are_found_by_the_index(folder: Path) -> None:
    split(folder)
    checkpoint = Checkpoint(folder)
    checkpoint.check()
    assert [file.name[:11] for file in checkpoint.weight_files] == ["model-00001", "model-00002"]


def shard_with(folder: Path, name: str) -> tuple[str, str]:
    """Return the shard that the index names for a tensor, and the other one."""
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return names[name], next(other for other in sorted({*names.values()}) if other != names[name])


def test_a_tensor_in_two_shards_is_read_from_the_one_that_the_index_names(folder: Path) -> None:
    split(folder)
    name = "model.norm.weight"
    right, wrong = shard_with(folder, name)
    tensors = load_file(folder / wrong)
    save_file({**tensors, name: torch.zeros_like(load_file(folder / right)[name])}, folder / wrong)
    checkpoint = Checkpoint(folder)
    checkpoint.check()
    (info,) = [info for info in checkpoint.tensors.values() if info.name == name]
    assert info.file.name == right


def test_an_index_and_shards_that_disagree_are_an_error(folder: Path) -> None:
    split(folder)
    name, index = "model.norm.weight", folder / "model.safetensors.index.json"
    right, wrong = shard_with(folder, name)
    content = json.loads(index.read_text())
    content["weight_map"][name] = wrong
    index.write_text(json.dumps(content))
    assert f"{name} in {wrong}, which does not hold it; expected the shard of each tensor" in complaint(
        folder
    )
    del content["weight_map"][name]
    index.write_text(json.dumps(content))
    save_file({**load_file(folder / wrong), name: load_file(folder / right)[name]}, folder / wrong)
    assert f"nothing about {name}, which " in complaint(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    split(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "the shard model-00002-of-00002.safetensors is not there" in complaint(folder)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}', "[" * 100_000])
def test_an_index_that_says_nothing_is_named(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    message = complaint(folder)
    assert "model.safetensors.index.json" in message and ("weight_map" in message or "JSON" in message)


def test_a_shard_outside_the_folder_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not there; expected all shards beside it" in complaint(folder)


@pytest.mark.parametrize("kept", [-1, 700, 5, 0])
def test_a_truncated_file_is_found_from_its_size(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:kept])
    assert f"model.safetensors: {len(content[:kept])} bytes (truncated)" in complaint(folder)


@pytest.mark.parametrize(
    "content", [b"<html>not found</html>", (4).to_bytes(8, "little") + b"{]]}", b"\0" * 20]
)
def test_a_file_of_something_else_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    message = complaint(folder)
    assert "model.safetensors" in message and "Download the file again" in message


@pytest.mark.parametrize("entry", [{"data_offsets": [0, 4]}, {"data_offsets": [-32, 0]}, {"dtype": "BF16"}])
def test_a_tensor_whose_bytes_are_not_its_shape_is_named(folder: Path, entry: dict[str, object]) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"] |= entry
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    assert "model.norm.weight is " in complaint(folder)


def test_missing_unknown_and_misshapen_tensors_are_named(folder: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(folder, {name: torch.zeros(12, 9)})
    assert f"{name} has shape [12, 9]; expected [12, 8]" in complaint(folder)
    change_tensors(folder, {name: torch.zeros(12, 8).long()})
    assert f"{name} has dtype I64; expected one of F32, F16, BF16" in complaint(folder)
    change_tensors(folder, {name: None})
    assert f"missing tensors: {name}" in complaint(folder)
    write_config(folder, num_hidden_layers=2)
    assert "missing tensors:" in complaint(folder) and "and 7 more" in complaint(folder)
    write_config(folder)
    change_tensors(folder, {name: torch.zeros(12, 8), "model.layers.0.mlp.extra": torch.zeros(1)})
    assert "unknown tensors: model.layers.0.mlp.extra" in complaint(folder)


def test_saved_buffers_and_copies_of_a_tied_embedding_are_ignored(folder: Path) -> None:
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, {buffer: torch.zeros(1), "lm_head.weight": torch.zeros(10, 8)})
    Checkpoint(folder).check()
    write_config(folder, tie_word_embeddings=False)
    Checkpoint(folder).check()


def test_a_saved_family_can_be_found_by_name(family: Callable[[str], Any]) -> None:
    assert Checkpoint(family("qwen3").path).architecture.name == "Qwen3ForCausalLM"
