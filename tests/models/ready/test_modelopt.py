"""ModelOpt's FP8, written by hand after its description: its exporter does not run here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageant import kernels
from pageant.kernels.quantized import dequantize
from pageant.models import Checkpoint
from pageant.models.loading import load_decoder

Q_PROJ = "model.layers.0.self_attn.q_proj"
HF_QUANT_CONFIG = {
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head", "*o_proj"],
    },
}


@pytest.fixture
def folder(family: Callable[[str], Any], tmp_path: Path) -> Path:
    """A Llama with float8 weights but for its output projections, and scales of activations, keys and values."""
    base, saved = family("llama"), {}
    for name, tensor in load_file(base.path / "model.safetensors").items():
        module = name.removesuffix(".weight")
        saved[name] = tensor
        if ".layers." in name and tensor.dim() == 2 and not module.endswith("o_proj"):
            scale = tensor.abs().max() / 448
            saved[name] = (tensor / scale).to(torch.float8_e4m3fn)
            saved[f"{module}.weight_scale"], saved[f"{module}.input_scale"] = scale, torch.ones(())
        if module.endswith(("k_proj", "v_proj")):
            saved[f"{module}.{module[-6]}_scale"] = torch.ones(())
    save_file(saved, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((base.path / "config.json").read_bytes())
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(HF_QUANT_CONFIG))
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    config = HF_QUANT_CONFIG | {"quantization": HF_QUANT_CONFIG["quantization"] | changes}
    (folder / "hf_quant_config.json").write_text(json.dumps(config))


def test_weights_are_numbers_times_the_scale(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    said = checkpoint.ready.description
    assert said.startswith(
        "ModelOpt FP8: 9 matrices requantised in 8.5 bits a weight; scales of keys and values"
    )
    decoder: Any = load_decoder(checkpoint, "float32", kernels=kernels.load("reference"))
    saved = load_file(folder / "model.safetensors")
    for weight, module in checkpoint.ready.modules.items():
        expected = saved[weight].float() * saved[f"{module.name}.weight_scale"]
        found = dequantize(decoder.weight(checkpoint.decoder()[1][weight]), torch.float32)
        assert (found - expected).norm() / expected.norm() < 0.006


def test_a_configuration_in_config_json_is_read_too(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": ["lm_head", "*.o_proj"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    Checkpoint(folder).check()
    (folder / "hf_quant_config.json").unlink()
    Checkpoint(folder).check()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"quant_algo": "NVFP4"}, "quant_algo is 'NVFP4'; expected FP8"),
        ({"quant_algo": None}, "no quant_algo; expected a string"),
        ({"exclude_modules": ["*q_proj"]}, f"expected a dense {Q_PROJ}, which hf_quant_config.json excludes"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_configuration_that_is_not_the_weights_is_refused(
    folder: Path, refused: Callable[[Path], str], changes: dict[str, Any], found: str
) -> None:
    edit(folder, **changes)
    assert found in refused(folder)


def test_two_configurations_that_disagree_are_refused(folder: Path, refused: Callable[[Path], str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "quant_algo is 'FP8'; expected 'NVFP4', as config.json has it" in refused(folder)


def test_weights_without_scales_are_refused(folder: Path, refused: Callable[[Path], str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"{Q_PROJ}.weight_scale"]
    save_file(tensors, folder / "model.safetensors")
    assert f"no {Q_PROJ}.weight_scale beside {Q_PROJ}.weight" in refused(folder)
