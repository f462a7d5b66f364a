"""FP8 by tensor, row and block: dequantised by an independent reading of e4m3, in whole models with ragged blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pageant import kernels
from pageant.kernels.quantized import QuantizedWeight, dequantize
from pageant.models import Checkpoint
from pageant.models.config import Config
from pageant.models.loading import load_decoder
from pageant.models.ready.filling import dequantised
from pageant.models.ready.fp8 import Float8
from pageant.models.tensor_files import read_header

Q_PROJ = "model.layers.0.self_attn.q_proj"
KINDS = {"tensor": None, "row": None, "block": [32, 48]}


def e4m3(tensor: Tensor) -> Any:
    """Return the numbers of float8_e4m3 in float32, from sign, exponent and mantissa."""
    bits = tensor.view(torch.uint8).numpy().astype(np.int64)
    sign, exponent, mantissa = 1 - 2 * (bits >> 7), bits >> 3 & 15, bits & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return (sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)).astype(np.float32)


def quantised(weight: Tensor, kind: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return float8 numbers, their scales, and the weight that they stand for, in numpy's arithmetic."""
    down, along = (
        KINDS["block"] if kind == "block" else (1 if kind == "row" else len(weight), weight.shape[1])
    )
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % along, 0, -len(weight) % down))
    blocks = padded.unflatten(0, (-1, down)).unflatten(2, (-1, along))
    scales = (blocks.abs().amax((1, 3)) / 448).to(dtype)
    wide = (
        scales.float()
        .repeat_interleave(down, 0)
        .repeat_interleave(along, 1)[: len(weight), : weight.shape[1]]
    )
    numbers = (weight.float() / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    stands_for = torch.from_numpy(e4m3(numbers) * wide.numpy())
    return numbers, scales.view(()) if kind == "tensor" else scales, stands_for


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(64, 96), (200, 100), (8, 48)])
def test_a_module_is_what_its_description_says(tmp_path: Path, kind: str, shape: tuple[int, int]) -> None:
    numbers, scales, expected = quantised(torch.randn(shape), kind)
    role = "weight_scale_inv" if kind == "block" else "weight_scale"
    tensors = {"weight": numbers, role: scales}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {} if kind != "block" else {"weight_block_size": KINDS["block"]}
    method = Float8(Config(config, tmp_path / "config.json"))
    module = method.module("m", *shape, read_header(tmp_path / "model.safetensors"))
    module.check_values()
    assert torch.equal(dequantised(module, tensors), expected)
    assert module.fidelity == "requantised"


def written(family: Any, folder: Path, kind: str, excluded: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Quantise the linear maps of a model's layers into a folder; return its tensors dequantised."""
    saved, dense = {}, {}
    for name, tensor in load_file(family.path / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if ".layers." not in name or tensor.dim() != 2 or module.endswith(("mlp.gate", *excluded)):
            saved[name] = dense[name] = tensor
            continue
        role = "weight_scale_inv" if kind == "block" else "weight_scale"
        saved[name], saved[f"{module}.{role}"], dense[name] = quantised(tensor, kind)
        saved[f"{module}.input_scale"] = torch.ones(())
    save_file(saved, folder / "model.safetensors")
    config = json.loads((family.path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    config["quantization_config"] |= {"ignored_layers": list(excluded)} if excluded else {}
    config["quantization_config"] |= {"weight_block_size": KINDS["block"]} if kind == "block" else {}
    (folder / "config.json").write_text(json.dumps(config))
    return dense


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3_moe"])
def test_every_weight_of_a_model_is_as_near_as_8_bits_are(
    family: Callable[[str], Any], tmp_path: Path, kind: str, name: str
) -> None:
    """Blocks of 32 by 48 are ragged in both directions, and those of fused rows end between them."""
    dense = written(family(name), tmp_path, kind)
    checkpoint = Checkpoint(tmp_path)
    decoder: Any = load_decoder(checkpoint, "float32", kernels=kernels.load("reference"))
    assert checkpoint.ready.description.startswith("FP8: 12 matrices requantised in 8.5 bits a weight")
    for weight, place in checkpoint.decoder()[1].items():
        found, expected = decoder.weight(place), dense[checkpoint.tensors[weight].name].float()
        if isinstance(found, QuantizedWeight):
            assert (dequantize(found, torch.float32) - expected).norm() / expected.norm() < 0.006, weight
        else:
            assert torch.equal(found, expected), weight


def test_an_excluded_module_is_as_it_is(
    family: Callable[[str], Any], tmp_path: Path, logits_of: Callable[..., Any]
) -> None:
    written(family("llama"), tmp_path, "block", excluded=("self_attn.o_proj",))
    decoder: Any = load_decoder(Checkpoint(tmp_path), "float32", kernels=kernels.load("reference"))
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(
        decoder._layer_weights[1]["o.weight"], saved["model.layers.1.self_attn.o_proj.weight"].float()
    )
    assert logits_of(decoder, range(6, 20)).isfinite().all()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({f"{Q_PROJ}.weight_scale_inv": None}, f"no {Q_PROJ}.weight_scale_inv beside {Q_PROJ}.weight"),
        (
            {f"{Q_PROJ}.weight_scale_inv": torch.ones(2, 2)},
            "weight_scale_inv has shape [2, 2]; expected [3, 2]",
        ),
        ({f"{Q_PROJ}.weight_scale_inv": torch.zeros(3, 2)}, f"{Q_PROJ}.weight_scale_inv has 0 at [0, 0]"),
        ({f"{Q_PROJ}.weight_scale_inv": -torch.ones(3, 2)}, f"{Q_PROJ}.weight_scale_inv has -1 at [0, 0]"),
        (
            {f"{Q_PROJ}.weight_scale": torch.ones(1)},
            f"{Q_PROJ}.weight_scale_inv has weight_scale beside it",
        ),
        (
            {f"{Q_PROJ}.weight": torch.ones(96, 96, dtype=torch.int8)},
            f"{Q_PROJ}.weight has dtype I8; expected F8_E4M3",
        ),
        (
            {f"{Q_PROJ}.weight": torch.ones(96, 96).to(torch.float8_e5m2)},
            f"{Q_PROJ}.weight has dtype F8_E5M2",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tensors_that_make_no_sense_are_refused(
    family: Callable[[str], Any],
    tmp_path: Path,
    refused: Callable[[Path], str],
    change: dict[str, Any],
    found: str,
) -> None:
    written(family("llama"), tmp_path, "block")
    tensors = load_file(tmp_path / "model.safetensors") | change
    save_file({name: one for name, one in tensors.items() if one is not None}, tmp_path / "model.safetensors")
    assert found in refused(tmp_path)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (
            {"weight_block_size": [32, 0]},
            "weight_block_size is [32, 0]; expected two whole numbers from 1 up",
        ),
        ({"weight_block_size": [16, 16]}, "weight_scale_inv has shape [3, 2]; expected [6, 6]"),
        ({"weight_block_size": None}, "weight_scale_inv has shape [3, 2]; expected [] or [1]"),
        ({"fmt": "e5m2"}, "fmt is 'e5m2'; expected 'e4m3'"),
        ({"ignored_layers": ["q_proj"]}, f"expected a dense {Q_PROJ}, which config.json excludes"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    family: Callable[[str], Any],
    tmp_path: Path,
    refused: Callable[[Path], str],
    config: dict[str, Any],
    found: str,
) -> None:
    written(family("llama"), tmp_path, "block")
    whole = json.loads((tmp_path / "config.json").read_text())
    whole["quantization_config"] |= config
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert found in refused(tmp_path)
