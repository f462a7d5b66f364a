"""GPTQ: GPTQModel's own checkpoints, matrices packed by hand, and files that are not what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pageant.kernels.quantized import dequantize, empty_quantized
from pageant.kernels.reference import ReferenceKernels
from pageant.models import Checkpoint
from pageant.models.config import Config
from pageant.models.ready.filling import dequantised, fill
from pageant.models.ready.gptq import GPTQ
from pageant.models.ready.weights import Form
from pageant.models.tensor_files import read_header
from pageant.models.weights import Place

Q_PROJ = "model.layers.0.self_attn.q_proj"


def packed(
    folder: Path,
    bits: int,
    symmetric: bool,
    version_2: bool,
    group: int,
    order: Any,
    outputs: int,
    inputs: int,
) -> tuple[Any, Any]:
    """Write a module bit by bit, as the format's description has it; return it read back, and its weight in numpy."""
    random = np.random.default_rng(bits + group + outputs)
    groups = inputs // group
    q = random.integers(0, 1 << bits, (inputs, outputs))
    zeros = np.full((groups, outputs), 1 << (bits - 1))
    if not symmetric:
        zeros = random.integers(0, 1 << bits, (groups, outputs))
    scales = (random.random((groups, outputs)) + 0.5).astype(np.float16)
    g_idx = np.arange(inputs) // group if order is None else order(random, inputs, group)
    words, zero_words = np.zeros((inputs * bits // 32, outputs), np.int64), None
    for i in range(inputs):
        words[i * bits // 32] |= q[i] << (i * bits % 32)
    zero_words = np.zeros((groups, -(-outputs * bits // 32)), np.int64)
    for o in range(outputs):
        zero_words[:, o * bits // 32] |= zeros[:, o] << (o * bits % 32)
    if not version_2:  # one less, in the arithmetic of whole words
        zero_words = (zero_words - sum(1 << place for place in range(0, 32, bits))) % (1 << 32)
    tensors = {
        "m.qweight": torch.from_numpy(words.astype(np.uint32).view(np.int32)),
        "m.qzeros": torch.from_numpy(zero_words.astype(np.uint32).view(np.int32)),
        "m.scales": torch.from_numpy(scales),
        "m.g_idx": torch.from_numpy(g_idx.astype(np.int32)),
    }
    save_file(tensors, folder / "model.safetensors")
    parts = {
        name.removeprefix("m."): info for name, info in read_header(folder / "model.safetensors").items()
    }
    values = {
        **{"bits": bits, "group_size": group, "sym": symmetric, "quant_method": "gptq"},
        "checkpoint_format": "gptq_v2" if version_2 else "gptq",
    }
    module = GPTQ(Config(values, folder / "config.json")).module("m", outputs, inputs, parts)
    module.check_values()
    weight = scales[g_idx].astype(np.float32) * (q - zeros[g_idx]).astype(np.float32)
    return (module, {name.removeprefix("m."): tensor for name, tensor in tensors.items()}), weight.T


def scattered(random: Any, inputs: int, group: int) -> Any:
    return random.permutation(np.arange(inputs) // group)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("version_2", [True, False])
@pytest.mark.parametrize("order", [None, scattered])
@pytest.mark.parametrize(
    ("group", "outputs", "inputs"), [(32, 96, 64), (128, 200, 256), (64, 72, 64), (16, 8, 96)]
)
def test_a_module_is_what_its_description_says(
    tmp_path: Path,
    bits: int,
    symmetric: bool,
    version_2: bool,
    order: Any,
    group: int,
    outputs: int,
    inputs: int,
) -> None:
    (module, tensors), weight = packed(tmp_path, bits, symmetric, version_2, group, order, outputs, inputs)
    assert torch.equal(dequantised(module, tensors), torch.from_numpy(weight))
    assert module.fits == (group % 32 == 0 and (symmetric or bits == 4))
    if not module.fits:
        return
    kept = {(4, True): 4, (4, False): 5, (8, True): 8}[bits, symmetric]
    assert module.bits == kept
    room = empty_quantized((outputs, inputs), kept, "cpu")
    form = Form(kept, "rounded", weight.size, module.order)
    place = Place(name="o.weight", layer=0, shape=(outputs, inputs))
    fill(room, module, tensors, form, place, Target())
    rounded = {"scales": tensors["scales"].bfloat16().float()}
    expected = dequantised(module, tensors | rounded)
    if module.order is not None:
        expected = expected[:, torch.from_numpy(module.order)]
    assert torch.equal(dequantize(room, torch.float32), expected), "but for the scales' rounding it is exact"


class Target:
    device = torch.device("cpu")
    kernels = ReferenceKernels()


# --- files that are not what they say ---


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"bits": 3}, "quantization_config.bits is 3; expected 4 or 8"),
        ({"bits": 2}, "quantization_config.bits is 2; expected 4 or 8"),
        ({"bits": ...}, "no quantization_config.bits"),
        ({"bits": "4"}, "quantization_config.bits is '4'"),
        (
            {"bits": 8},
            "qweight has shape [8, 64]; expected [16, 64] (64 outputs, 64 inputs, 8 bits, group size 32)",
        ),
        ({"group_size": 0}, "quantization_config.group_size is 0; expected a whole number from 1 up, or -1"),
        ({"group_size": -2}, "quantization_config.group_size is -2"),
        ({"group_size": None}, "quantization_config.group_size is None"),
        ({"group_size": 48}, "64 inputs; expected a multiple of the group size, 48"),
        ({"group_size": 64}, "qzeros has shape [2, 8]; expected [1, 8]"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; expected gptq or gptq_v2"),
        ({"quant_method": "quip"}, "quantization_config with the method 'quip'; expected one of gptq, awq"),
        ({"quant_method": 7}, "quantization_config with the method 7"),
        ({"dynamic": {"-:(": {}}}, "quantization_config.dynamic.-:( is '('; expected a regular expression"),
        ({"dynamic": {"-:(.+)+x": {}}}, "is '(.+)+x'; expected a regular expression without repetitions of"),
        ({"dynamic": {".*o_proj": 3}}, "quantization_config.dynamic..*o_proj is 3; expected an object"),
        (
            {"dynamic": {r"-:.*o_proj": {}}},
            "expected a dense model.layers.0.self_attn.o_proj, which config.json excludes",
        ),
        (
            {"dynamic": {r".*\.0\.mlp\.up_proj": {"bits": 8}}},
            "up_proj.qweight has shape [8, 96]; expected [16, 96]",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    copied: Callable[[str], Any], config: dict[str, Any], found: str
) -> None:
    checkpoint = copied("gptq")
    (checkpoint.path / "quantize_config.json").unlink(missing_ok=True)
    checkpoint.edit(config)
    assert found in checkpoint.complaint()


def changed(tensor: torch.Tensor, value: float, place: tuple[int, ...] = (1, 3)) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("part", "change", "found"),
    [
        ("scales", lambda _: None, f"no {Q_PROJ}.scales beside {Q_PROJ}.qweight"),
        ("qzeros", lambda _: None, f"no {Q_PROJ}.qzeros beside {Q_PROJ}.qweight"),
        ("qweight", lambda _: None, f"no {Q_PROJ}.qweight beside {Q_PROJ}.qzeros"),
        ("scales", lambda old: old[:1], f"{Q_PROJ}.scales has shape [1, 64]; expected [2, 64]"),
        ("scales", lambda old: old.double(), f"{Q_PROJ}.scales has dtype F64; expected F16 or BF16 or F32"),
        (
            "scales",
            lambda old: changed(old, float("nan")),
            f"{Q_PROJ}.scales has nan at [1, 3]; expected scales",
        ),
        ("scales", lambda old: changed(old, float("inf")), f"{Q_PROJ}.scales has inf at [1, 3]"),
        (
            "scales",
            lambda old: changed(old, 0),
            f"{Q_PROJ}.scales has 0 at [1, 3]; expected scales that are finite",
        ),
        ("scales", lambda old: changed(old, -0.5), f"{Q_PROJ}.scales has -0.5 at [1, 3]"),
        ("qweight", lambda old: old[:4], f"{Q_PROJ}.qweight has shape [4, 64]; expected [8, 64]"),
        ("qweight", lambda old: old.to(torch.int64), f"{Q_PROJ}.qweight has dtype I64; expected I32"),
        (
            "g_idx",
            lambda old: changed(old, 2, (5,)),
            f"{Q_PROJ}.g_idx has the group 2; expected groups from 0 to 1",
        ),
        ("g_idx", lambda old: changed(old, -1, (5,)), f"{Q_PROJ}.g_idx has the group -1"),
        ("g_idx", lambda old: torch.cat((old, old)), f"{Q_PROJ}.g_idx has shape [128]; expected [64]"),
        ("g_idx", lambda old: old * 0, f"{Q_PROJ}.g_idx has inputs of 1 groups; expected inputs of all 2"),
        (
            "qzeros",
            lambda old: old * 0,
            f"{Q_PROJ}.qzeros has the zeros 0; expected 7 (version 1) or 8 (version 2)",
        ),
        ("qzeros", lambda old: changed(old, 0x78787878), f"{Q_PROJ}.qzeros has the zeros 7, 8; expected 7"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tensors_that_make_no_sense_are_refused(
    copied: Callable[[str], Any], part: str, change: Callable[[Any], Any], found: str
) -> None:
    checkpoint = copied("gptq")
    name = f"{Q_PROJ}.{part}"
    checkpoint.edit(tensors={name: change(checkpoint.tensors[name])})
    message = checkpoint.complaint()
    assert found in message and "model.safetensors" in message


def test_a_dense_weight_beside_a_quantised_one_is_refused(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("gptq")
    checkpoint.edit(tensors={f"{Q_PROJ}.weight": torch.zeros(64, 64)})
    assert f"{Q_PROJ}.weight has dtype F32; expected a quantised weight, since" in checkpoint.complaint()


def test_zeros_of_version_2_under_the_name_of_version_1_are_understood(
    copied: Callable[[str], Any], logits_of: Callable[..., Any]
) -> None:
    checkpoint = copied("gptq_v2")
    checkpoint.edit({"checkpoint_format": "gptq"})
    (checkpoint.path / "quantize_config.json").unlink(missing_ok=True)
    expected = torch.from_numpy(checkpoint.expected["logits"])
    assert (logits_of(checkpoint.load(), checkpoint.expected["ids"]) - expected).square().mean().sqrt() < 5e-3


def test_two_configurations_that_disagree_are_refused(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("gptq")
    (checkpoint.path / "quantize_config.json").write_text(
        '{"bits": 8, "group_size": 32, "quant_method": "gptq"}'
    )
    message = checkpoint.complaint()
    assert "quantize_config.json: bits is 8; expected 4, as config.json has it" in message


def test_a_configuration_beside_config_json_is_enough(
    copied: Callable[[str], Any], logits_of: Callable[..., Any]
) -> None:
    """AutoGPTQ wrote no other."""
    checkpoint = copied("gptq")
    whole = checkpoint.config
    section = whole.pop("quantization_config")
    (checkpoint.path / "config.json").write_text(json.dumps(whole))
    kept = {key: section[key] for key in ("bits", "group_size", "desc_act", "sym")}
    (checkpoint.path / "quantize_config.json").write_text(json.dumps(kept))
    expected = torch.from_numpy(checkpoint.expected["logits"])
    assert (logits_of(checkpoint.load(), checkpoint.expected["ids"]) - expected).square().mean().sqrt() < 5e-3
    (checkpoint.path / "quantize_config.json").unlink()
    assert f"the quantised tensor {Q_PROJ.replace('q_proj', '')}" in checkpoint.complaint()
    assert "but no quantization_config in config.json" in checkpoint.complaint()


def test_biases_of_zeros_that_the_model_does_not_have_are_passed_over(copied: Callable[[str], Any]) -> None:
    checkpoint = copied("gptq")
    bias = "model.layers.0.mlp.down_proj.bias"
    checkpoint.edit(tensors={bias: torch.zeros(64)})
    Checkpoint(checkpoint.path).check()
    checkpoint.edit(tensors={bias: torch.ones(64)})
    assert f"unknown tensors: {bias}" in checkpoint.complaint()
