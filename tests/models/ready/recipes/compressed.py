"""Make the compressed-tensors fixtures: `python compressed.py [NAME...]` with compressed-tensors 0.20 installed.

Weights are rounded to nearest: what is tested is how they are saved, not how well they were chosen.
"""

from __future__ import annotations

import shutil
import sys
import traceback
from pathlib import Path

import tiny
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

GROUPED = {"group_size": 32}
CASES = {
    "ct_w4a16": (tiny.qwen2, "W4A16", GROUPED),
    "ct_w4a16_asym": (tiny.llama, "W4A16_ASYM", GROUPED),
    "ct_w8a16": (tiny.llama, "W8A16", GROUPED),
    "ct_w8a8": (tiny.qwen2, "W8A8", {}),
    "ct_fp8": (tiny.llama, "FP8", {}),
    "ct_fp8_dynamic": (tiny.qwen2, "FP8_DYNAMIC", {}),
    "ct_fp8_block": (tiny.llama, "FP8_BLOCK", {"block_structure": [32, 32]}),
    "ct_mxfp4": (tiny.llama, "MXFP4A16", {}),
    "ct_moe": (tiny.qwen3_moe, "W4A16", GROUPED),
    "ct_excluded": (tiny.llama, "W4A16", GROUPED),
}
IGNORED = {
    "ct_moe": ["lm_head", "re:.*mlp.gate$"],
    "ct_excluded": ["lm_head", "model.layers.0.self_attn.v_proj", "re:.*layers.1.mlp.down_proj"],
}


def make(name: str) -> None:
    recipe, preset, changes = CASES[name]
    model, dense = recipe(), recipe()
    scheme = preset_name_to_scheme(preset, ["Linear"])
    for key, value in changes.items():
        setattr(scheme.weights, key, value)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=IGNORED.get(name, ["lm_head"]))
    apply_quantization_config(model, config)
    for module in model.modules():
        own = getattr(module, "quantization_scheme", None)
        if own is not None and own.weights is not None:
            _calibrate(module, own.weights)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    out = Path(f"/tmp/ready-fixtures/{name}")
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    compressor.update_config(out)
    # The maker multiplies in the dtype of the scales: in float32, its weights are those that were saved.
    wide = out.with_name(f"{name}-wide")
    shutil.copytree(out, wide, dirs_exist_ok=True)
    tensors = load_file(out / "model.safetensors")
    scales = {
        key: tensor.float()
        for key, tensor in tensors.items()
        if tensor.dtype == torch.bfloat16 and "_scale" in key
    }
    save_file(tensors | scales, wide / "model.safetensors", {"format": "pt"})
    back = AutoModelForCausalLM.from_pretrained(
        wide, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    names = {key for key in load_file(out / "model.safetensors") if "_proj" in key}
    modules = {key.rpartition(".")[0] for key in names if key.endswith(("_packed", "_scale"))}
    weights = {f"{module}.weight": back.get_submodule(module).weight.detach() for module in sorted(modules)}
    tiny.keep(out, name, dense, weights)


def _calibrate(module: torch.nn.Module, weights: object) -> None:
    """Choose a module's scales and zeros by its largest numbers."""
    whole = module.weight.data.float()
    strategy = str(getattr(weights.strategy, "value", weights.strategy))
    if strategy == "channel":
        ends = whole.amin(1, keepdim=True), whole.amax(1, keepdim=True)
    elif strategy == "tensor":
        ends = whole.amin().reshape(1), whole.amax().reshape(1)
    elif strategy == "group":
        groups = whole.unflatten(1, (-1, weights.group_size))
        ends = groups.amin(2), groups.amax(2)
    else:
        down, along = weights.block_structure
        blocks = whole.unflatten(0, (-1, down)).unflatten(2, (-1, along))
        ends = blocks.amin((1, 3)), blocks.amax((1, 3))
    scale, zero = calculate_qparams(*ends, weights)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(
            zero.reshape(module.weight_zero_point.shape).to(module.weight_zero_point.dtype)
        )
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.02)


for case in sys.argv[1:] or CASES:
    try:
        make(case)
    except Exception as error:
        traceback.print_exc(limit=4)
        print(f"RESULT {case} FAILED {type(error).__name__}: {error!s:.500}")
