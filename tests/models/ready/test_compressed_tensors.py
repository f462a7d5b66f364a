"""compressed-tensors: its own checkpoints are in `test_formats`; here act-order, experts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pageant.models import Checkpoint
from pageant.models.config import Config
from pageant.models.ready.compressed_tensors import CompressedTensors
from pageant.models.ready.filling import dequantised
from pageant.models.tensor_files import read_header

Q_PROJ = "model.layers.0.self_attn.q_proj"


def in_words(numbers: Any, bits: int) -> torch.Tensor:
    """Pack whole numbers [R, C] along columns, from the lowest bits of a word up."""
    words = np.zeros((numbers.shape[0], -(-numbers.shape[1] * bits // 32)), np.int64)
    for column in range(numbers.shape[1]):
        words[:, column * bits // 32] |= (numbers[:, column] + (1 << bits - 1)) << (column * bits % 32)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["group", "channel", "act-order"])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (200, 160)])
def test_a_packed_module_is_what_its_description_says(
    tmp_path: Path, bits: int, symmetric: bool, strategy: str, outputs: int, inputs: int
) -> None:
    random = np.random.default_rng(bits + outputs)
    group = inputs if strategy == "channel" else 32
    least, most = -(1 << bits - 1), 1 << bits - 1
    q = random.integers(least, most, (outputs, inputs))
    zeros = random.integers(least, most, (outputs, inputs // group)) * (not symmetric)
    which = np.arange(inputs) // group
    if strategy == "act-order":
        which = random.permutation(which)
    scales = torch.from_numpy(random.random(zeros.shape) + 0.5).bfloat16()
    tensors = {
        "weight_packed": in_words(q, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([outputs, inputs]),
        "weight_g_idx": torch.from_numpy(which.astype(np.int32)),
        "weight_zero_point": torch.from_numpy(in_words(zeros.T, bits).numpy().T.copy()),
    }
    for unused in [*(["weight_zero_point"] * symmetric), *(["weight_g_idx"] * (strategy != "act-order"))]:
        del tensors[unused]
    save_file(tensors, tmp_path / "model.safetensors")
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group}
    weights["strategy"] = "channel" if strategy == "channel" else "group"
    config = {
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    method = CompressedTensors(Config(config, tmp_path / "config.json"))
    module = method.module("m", outputs, inputs, read_header(tmp_path / "model.safetensors"))
    module.check_values()
    expected = scales.float().numpy()[:, which] * (q - zeros[:, which]).astype(np.float32)
    assert torch.equal(dequantised(module, tensors), torch.from_numpy(expected))
    assert module.bits == {(4, True): 4, (4, False): 5, (8, True): 8, (8, False): None}[bits, symmetric]
    assert (module.order is None) == (strategy != "act-order")


def groups(**weights: Any) -> dict[str, Any]:
    """A configuration of one group whose weights differ from `ct_w4a16`'s."""
    whole = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": whole | weights}}}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (groups(num_bits=3), "config_groups.group_0.weights.num_bits is 3; expected 4 or 8"),
        (groups(num_bits=8), f"{Q_PROJ}.weight_packed has shape [64, 8]; expected [64, 16]"),
        (groups(group_size=0), "weights.group_size is 0; expected a whole number from 1 up"),
        (groups(group_size=-2), "weights.group_size is -2"),
        (groups(group_size=48), "64 inputs; expected a multiple of the group size, 48"),
        (groups(group_size=64), f"{Q_PROJ}.weight_scale has shape [64, 2]; expected [64, 1]"),
        (groups(symmetric=False), f"no {Q_PROJ}.weight_zero_point beside"),
        (
            groups(strategy="tensor_group"),
            "weights.strategy is 'tensor_group'; expected one of tensor, channel",
        ),
        (
            groups(type="float", num_bits=8, strategy="channel"),
            "weight_packed has dtype I32; expected F8_E4M3",
        ),
        (groups(type="float"), f"{Q_PROJ}.weight_packed has dtype I32; expected U8"),
        ({"config_groups": {}}, "config_groups is {}; expected at least one group"),
        ({"config_groups": [1]}, "config_groups is [1]; expected an object"),
        ({"format": "marlin-24"}, "format is 'marlin-24'; expected one of"),
        (
            {"format": "nvfp4-pack-quantized"},
            "format is 'nvfp4-pack-quantized'; expected one of pack-quantized",
        ),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "neither sparse nor rotated weights are read"),
        ({"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, "neither sparse nor rotated"),
        ({"ignore": ["re:.*q_proj"]}, f"expected a dense {Q_PROJ}, which config.json excludes"),
        ({"ignore": ["re:("]}, "ignore is '('; expected a regular expression"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    copied: Callable[[str], Any], config: dict[str, Any], found: str
) -> None:
    checkpoint = copied("ct_w4a16")
    if "format" in config:  # each group's own comes first
        group = checkpoint.config["quantization_config"]["config_groups"]["group_0"]
        config = config | {"config_groups": {"group_0": group | {"format": config["format"]}}}
    checkpoint.edit(config)
    assert found in checkpoint.complaint()


@pytest.mark.parametrize(
    ("name", "part", "change", "found"),
    [
        ("ct_w4a16", "weight_scale", lambda _: None, f"no {Q_PROJ}.weight_scale beside"),
        (
            "ct_w4a16",
            "weight_packed",
            lambda _: None,
            "no weight_packed beside it; expected 4-bit whole numbers",
        ),
        (
            "ct_w4a16",
            "weight_scale",
            lambda old: old[:, :1],
            f"{Q_PROJ}.weight_scale has shape [64, 1]; expected",
        ),
        ("ct_w4a16", "weight_scale", lambda old: -old, f"{Q_PROJ}.weight_scale has -"),
        (
            "ct_w4a16",
            "weight_scale",
            lambda old: old * float("nan"),
            f"{Q_PROJ}.weight_scale has nan at [0, 0]",
        ),
        ("ct_w4a16", "weight_packed", lambda old: old[:, :4], f"{Q_PROJ}.weight_packed has shape [64, 4]"),
        ("ct_w4a16", "weight_shape", lambda old: old * 2, "weight_shape has [128, 128]; expected [64, 64]"),
        (
            "ct_w4a16",
            "weight_zero_point",
            lambda _: torch.zeros(8, 2, dtype=torch.int32),
            "has zeros; expected none",
        ),
        (
            "ct_w4a16_asym",
            "weight_zero_point",
            lambda old: old[:4],
            "weight_zero_point has shape [4, 2]; expected",
        ),
        ("ct_w8a8", "weight_scale", lambda _: None, f"no {Q_PROJ}.weight_scale beside"),
        (
            "ct_w8a8",
            "weight",
            lambda old: old[:, :32],
            f"{Q_PROJ}.weight has shape [64, 32]; expected [64, 64]",
        ),
        ("ct_fp8", "weight_scale", lambda _: None, f"no {Q_PROJ}.weight_scale beside"),
        ("ct_fp8", "weight_scale", lambda old: old * 0, f"{Q_PROJ}.weight_scale has 0 at [0]"),
        (
            "ct_fp8_block",
            "weight_scale",
            lambda old: old[:1],
            f"{Q_PROJ}.weight_scale has shape [1, 2]; expected",
        ),
        (
            "ct_mxfp4",
            "weight_scale",
            lambda old: old * 0 + 255,
            "weight_scale has NaN (exponent 255) at [0, 0]",
        ),
        ("ct_mxfp4", "weight_scale", lambda _: None, f"no {Q_PROJ}.weight_scale beside"),
        ("ct_mxfp4", "weight_packed", lambda old: old[:, :8], f"{Q_PROJ}.weight_packed has shape [64, 8]"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tensors_that_make_no_sense_are_refused(
    copied: Callable[[str], Any], name: str, part: str, change: Callable[[Any], Any], found: str
) -> None:
    checkpoint = copied(name)
    old = checkpoint.tensors.get(f"{Q_PROJ}.{part}")
    checkpoint.edit(tensors={f"{Q_PROJ}.{part}": change(old)})
    assert found in checkpoint.complaint()


def test_a_configuration_for_dense_tensors_is_refused(copied: Callable[[str], Any]) -> None:
    checkpoint, dense = copied("ct_w4a16"), {}
    spec_shapes = Checkpoint(checkpoint.path).decoder()[1]
    for name, place in spec_shapes.items():
        dense[name] = torch.ones(place.shape)
    save_file(dense, checkpoint.path / "model.safetensors")
    message = checkpoint.complaint()
    assert "a configuration of compressed-tensors for a checkpoint without one quantised module" in message


def test_one_dense_module_against_the_configuration_is_said(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("ct_w4a16")
    parts = {name: None for name in checkpoint.tensors if name.startswith(f"{Q_PROJ}.weight_")}
    checkpoint.edit(tensors={**parts, f"{Q_PROJ}.weight": torch.ones(64, 64)})
    ready = Checkpoint(checkpoint.path).ready
    assert f"dense against the configuration: {Q_PROJ}" in ready.description
    assert ready.forms[0, "qkv.weight"].bits is None
    assert checkpoint.load()._layer_weights[0]["qkv.weight"][:64].eq(1).all()


def test_scales_of_keys_and_values_are_passed_over_and_said(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("ct_w4a16")
    checkpoint.edit(tensors={"model.layers.0.self_attn.k_scale": torch.ones(1)})
    assert "scales of keys and values are ignored" in Checkpoint(checkpoint.path).ready.description


def test_names_of_the_configuration_are_those_of_the_files(copied: Callable[[str], Any]) -> None:
    """Gemma's text models are saved with another beginning of their names than they are known by here."""
    checkpoint = copied("gptq_asym")
    renamed = {f"language_model.{name}": one for name, one in checkpoint.tensors.items()}
    checkpoint.edit({"dynamic": {r"-:model\.": {}}}, {name: None for name in checkpoint.tensors} | renamed)
    (checkpoint.path / "quantize_config.json").unlink()
    names = replace(Checkpoint(checkpoint.path).architecture.names, prefixes={"language_model.": ""})
    known = Checkpoint(checkpoint.path)
    known.__dict__["architecture"] = replace(known.architecture, names=names)
    assert (
        known.ready.modules["model.layers.0.mlp.up_proj.weight"].name
        == "language_model.model.layers.0.mlp.up_proj"
    )
