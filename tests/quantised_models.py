"""Checkpoints that come quantised, made from plain ones: GPTQ's layout, each group rounded to nearest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

GROUP = 32
BITS = 4


def save_gptq(source: Path, folder: Path, *, act_order: bool = False) -> None:
    """Write a checkpoint's linear maps in 4 bits into a folder, beside copies of all that describes it.

    act_order: whether inputs of a group lie apart, in the same way for maps that read the same inputs.
    """
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": BITS, "group_size": GROUP}
    config["quantization_config"] |= {"sym": True, "desc_act": act_order, "checkpoint_format": "gptq"}
    (folder / "config.json").write_text(json.dumps(config))
    saved: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            order = _random(module) if act_order else None
            saved |= {f"{module}.{part}": one for part, one in packed(tensor, order).items()}
        else:
            saved[name] = tensor
    save_file(saved, folder / "model.safetensors")


def packed(weight: torch.Tensor, order: Any = None) -> dict[str, torch.Tensor]:
    """Return a matrix [outputs, inputs] of any dtype in the format's parts; `order` scatters the inputs of groups."""
    matrix = weight.float().numpy().T  # [inputs, outputs]
    inputs, outputs = matrix.shape
    groups = np.arange(inputs) // GROUP
    if order is not None:
        groups = order.permutation(groups)
    largest = np.zeros((inputs // GROUP, outputs), np.float32)
    np.maximum.at(largest, groups, np.abs(matrix))
    scales = (largest / 7).astype(np.float16)
    q = np.clip(np.rint(matrix / scales[groups].astype(np.float32)), -8, 7).astype(np.int64) + 8
    shifts = BITS * np.arange(8)[:, None]
    words = (q.reshape(-1, 8, outputs) << shifts).sum(1).astype(np.uint32)
    return {
        "qweight": torch.from_numpy(words.view(np.int32)),
        "qzeros": torch.full((inputs // GROUP, outputs // 8), 0x77777777, dtype=torch.int32),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }


def _random(module: str) -> Any:
    """Return random numbers that are the same for maps of a layer that read the same inputs."""
    layer = int(module.split(".layers.")[1].split(".")[0])
    kinds = {"o_proj": 1, "gate_proj": 2, "up_proj": 2, "down_proj": 3}
    return np.random.default_rng((layer, kinds.get(module.rpartition(".")[2], 0)))
