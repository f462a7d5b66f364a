"""Checkpoints: what one says about itself, and what is said about one that is not whole."""

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

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 10,
}
QWEN_WINDOW = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
SHAPES = {
    "model.embed_tokens.weight": (10, 8),
    "model.norm.weight": (8,),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small, whole checkpoint in the older style, to be broken in one place."""
    write_config(tmp_path)
    save_file({name: torch.zeros(shape) for name, shape in SHAPES.items()}, tmp_path / "model.safetensors")
    return tmp_path


def write_config(folder: Path, **changes: Any) -> None:
    """Write config.json with some keys changed; those changed to ... are left out."""
    config = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def complaint(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        Checkpoint(folder).check()
    assert str(folder) in str(error.value) and error.value.remedy
    return str(error.value)


def test_a_whole_checkpoint_passes(folder: Path, any_family: Any) -> None:
    Checkpoint(folder).check()
    Checkpoint(any_family.path).check()


def test_reading_a_checkpoint_loads_neither_torch_nor_transformers(folder: Path) -> None:
    code = (
        "import sys; from pageant.models import Checkpoint;"
        f"Checkpoint({str(folder)!r}).check(); sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- where it is ---


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


# --- config.json ---


def test_no_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "no config.json" in complaint(folder)


@pytest.mark.parametrize("text", ['{"hidden_size": 8,', "", "\x00\xff"])
def test_invalid_json_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert "config.json: not readable as JSON" in complaint(folder)


def test_json_that_is_no_object_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    assert "config.json: a JSON list; expected a JSON object" in complaint(folder)


@pytest.mark.parametrize("value", [..., None, []])
def test_no_architecture_is_refused_with_the_known_ones(folder: Path, value: object) -> None:
    write_config(folder, architectures=value)
    assert "no architectures; expected one of LlamaForCausalLM, MistralForCausalLM" in complaint(folder)


def test_an_unknown_architecture_is_refused_with_the_known_ones(folder: Path) -> None:
    write_config(folder, architectures=["MambaForCausalLM"])
    message = complaint(folder)
    assert "architectures is 'MambaForCausalLM'" in message and "Qwen3ForCausalLM" in message


def test_code_in_a_checkpoint_is_never_run(folder: Path) -> None:
    write_config(folder, auto_map={"AutoModel": "modeling.Model"})
    assert "auto_map" in complaint(folder) and "never run" in complaint(folder)


def test_code_of_a_class_that_is_known_by_now_is_passed_over(folder: Path) -> None:
    """Phi-3 came with code of its own before transformers had it."""
    (folder / "modeling.py").write_text("raise SystemExit('this ran')")
    write_config(folder, auto_map={"AutoModelForCausalLM": "modeling.LlamaForCausalLM"})
    Checkpoint(folder).check()
    write_config(folder, auto_map={"AutoModelForCausalLM": "modeling.MistralForCausalLM"})
    assert "never run" in complaint(folder)


def test_quantised_weights_are_refused_by_method(folder: Path) -> None:
    write_config(folder, quantization_config={"quant_method": "quip"})
    assert "quantization_config with the method 'quip'; expected one of gptq, awq" in complaint(folder)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1; expected a whole number from 1 to 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected a whole number from 1 to"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"vocab_size": "10"}, "vocab_size is '10'"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"intermediate_size": 1.5}, "intermediate_size is 1.5"),
        ({"intermediate_size": ...}, "no intermediate_size; expected a whole number from 1 up"),
        ({"max_position_embeddings": None}, "no max_position_embeddings"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of 4"),
        ({"hidden_size": 10}, "hidden_size is 10; expected a multiple of num_attention_heads (4)"),
        ({"head_dim": 5}, "head_dim is 5; expected an even number"),
        (QWEN_WINDOW | {"max_window_layers": -1}, "max_window_layers is -1; expected a whole number from 0"),
        (QWEN_WINDOW | {"layer_types": ["sliding_attention"] * 2}, "expected 1 times sliding_attention or"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected one of silu"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'; expected one of float32, float16"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; expected a list"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}, "rope_scaling.rope_type is 'mrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 0}}, "rope_parameters.factor is 0"),
        ({"rope_scaling": {"type": "linear"}}, "no rope_scaling.factor"),
        ({"rope_scaling": [1]}, "rope_scaling is [1]; expected an object"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "expected nothing that rope_parameters does not say too",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; expected 1"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; expected a token id"),
    ],
    ids=str,
)
def test_an_absurd_or_unsupported_value_is_refused_by_key(
    folder: Path, changes: dict[str, object], found: str
) -> None:
    write_config(folder, **changes)
    assert found in complaint(folder)


# --- weights ---


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


# --- what it says ---


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, [3, 4], (3, 4)),
        (2, 7, (7,)),
        (2, None, (2,)),
        ([5, 6], ..., (5, 6)),
        (None, None, ()),
        (0, ..., (0,)),
        ([2, 10, 99], ..., (2,)),  # the model has 10 tokens
    ],
)
def test_end_tokens_come_from_the_generation_config_first(
    folder: Path, in_config: object, in_generation: object, expected: tuple[int, ...]
) -> None:
    write_config(folder, eos_token_id=in_config)
    if in_generation is not ...:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert Checkpoint(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": ..., "dtype": "float16"}, "float16"),
        ({"torch_dtype": ...}, "float32"),
    ],
)
def test_the_dtype_is_the_configurations_or_else_the_weights(
    folder: Path, changes: dict[str, object], expected: str
) -> None:
    write_config(folder, **changes)
    assert Checkpoint(folder).dtype == expected


def test_a_constant_among_the_weights_does_not_say_their_dtype(folder: Path) -> None:
    write_config(folder, torch_dtype=...)
    change_tensors(folder, {"a.rotary_emb.inv_freq": torch.ones(3).long()})
    assert next(iter(Checkpoint(folder).tensors.values())).dtype == "I64"
    assert Checkpoint(folder).dtype == "float32"


def test_the_spec_is_what_transformers_reads(any_family: Any) -> None:
    spec, config = Checkpoint(any_family.path).decoder()[0], any_family.model.config
    heads = spec.attention.num_heads
    assert spec.vocab_size == config.vocab_size and spec.num_layers == config.num_hidden_layers
    scaling = getattr(config, "rope_parameters", None) or {}
    times = scaling["factor"] if scaling.get("rope_type") == "linear" else 1  # a scaling that adds positions
    assert spec.max_model_len == times * config.max_position_embeddings
    assert heads == config.num_attention_heads
    assert spec.attention.num_kv_heads == getattr(config, "num_key_value_heads", heads)
    assert spec.attention.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // heads)
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    windows = tuple(layer.window for layer in spec.layers)
    if kinds is None:
        assert windows == (window,) * spec.num_layers
    else:
        assert windows == tuple(window if kind == "sliding_attention" else None for kind in kinds)


def test_both_ways_to_write_rotary_scaling_mean_the_same(folder: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    write_config(folder, rope_theta=5e5, rope_scaling=scaling | {"type": "llama3"})
    old = Checkpoint(folder).decoder()[0].layers[0].rope
    parameters = scaling | {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 64}
    write_config(folder, rope_theta=..., rope_parameters=parameters)
    assert Checkpoint(folder).decoder()[0].layers[0].rope == old
    assert old is not None and old.theta == 5e5 and old.scaling is not None


def test_a_scaling_may_stand_in_both_places_if_it_is_the_same(folder: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    write_config(folder, rope_parameters=scaling | {"rope_theta": 5e5}, rope_scaling=scaling)
    rope = Checkpoint(folder).decoder()[0].layers[0].rope
    assert rope is not None and rope.theta == 5e5 and rope.scaling is not None


@pytest.mark.parametrize(
    ("scaling", "times"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 4),
        ({"rope_type": "yarn", "factor": 4.0}, 4),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 1),
        ({"rope_type": "dynamic", "factor": 4.0}, 1),
    ],
    ids=str,
)
def test_scaled_rotations_serve_more_positions(folder: Path, scaling: dict[str, object], times: int) -> None:
    longest = Checkpoint(folder).spec().max_model_len
    write_config(folder, rope_scaling=scaling)
    assert Checkpoint(folder).spec().max_model_len == times * longest


@pytest.mark.parametrize(("written", "window"), [(..., 4096), (None, None), (7, 7)])
def test_mistral_without_a_window_differs_from_mistral_without_a_word(
    folder: Path, written: object, window: int | None
) -> None:
    write_config(folder, architectures=["MistralForCausalLM"], sliding_window=written)
    assert [layer.window for layer in Checkpoint(folder).decoder()[0].layers] == [window]


def test_a_configuration_without_optional_keys_reads_as_in_transformers(folder: Path) -> None:
    write_config(folder, num_key_value_heads=..., rope_theta=..., hidden_act=..., tie_word_embeddings=...)
    spec = Checkpoint(folder).decoder()[0]
    rope = spec.layers[0].rope
    assert rope is not None and rope.theta == 10_000.0
    assert spec.attention.num_kv_heads == 4 and not spec.tie_word_embeddings


def test_a_saved_family_can_be_found_by_name(family: Callable[[str], Any]) -> None:
    assert Checkpoint(family("qwen3").path).architecture.name == "Qwen3ForCausalLM"
