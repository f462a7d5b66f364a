"""Stand-ins for checkpoints that come quantised: random codes and scales in the layouts of their formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GROUP_SIZE = 32
_SETTINGS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": GROUP_SIZE, "desc_act": False, "sym": True},
    "awq": {"bits": 4, "group_size": GROUP_SIZE, "zero_point": True, "version": "gemm"},
    "fp8": {"activation_scheme": "dynamic"},
}
METHODS = tuple(_SETTINGS)


def quantize(folder: Path, method: str) -> None:
    """Replace the linear maps of a dense checkpoint in a folder by ones that a method of METHODS has quantised."""
    from safetensors.torch import load_file, save_file

    make: Callable[[int, int], Mapping[str, Any]] = {"gptq": _gptq, "awq": _awq, "fp8": _fp8}[method]
    file = folder / "model.safetensors"
    tensors: dict[str, Any] = {}
    for name, tensor in load_file(file).items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix("weight")
            parts = make(*tensor.shape)
            tensors |= {module + part: one.contiguous() for part, one in parts.items()}
        else:
            tensors[name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **_SETTINGS[method]}
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _codes(*shape: int) -> Any:
    """Random words of eight codes of four bits, int32."""
    import torch

    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64).to(torch.int32)


def _scales(*shape: int) -> Any:
    import torch

    return torch.rand(shape).add(0.5).mul(0.01).half()


def _gptq(outputs: int, inputs: int) -> Mapping[str, Any]:
    import torch

    groups = inputs // GROUP_SIZE
    zeros = torch.full((groups, outputs // 8), 0x77777777, dtype=torch.int32)  # one less than the middle code
    return {
        "qweight": _codes(inputs // 8, outputs),
        "qzeros": zeros,
        "scales": _scales(groups, outputs),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP_SIZE,
    }


def _awq(outputs: int, inputs: int) -> Mapping[str, Any]:
    groups = inputs // GROUP_SIZE
    return {
        "qweight": _codes(inputs, outputs // 8),
        "qzeros": _codes(groups, outputs // 8),
        "scales": _scales(groups, outputs),
    }


def _fp8(outputs: int, inputs: int) -> Mapping[str, Any]:
    import torch

    weight = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    return {"weight": weight, "weight_scale": torch.tensor(0.05)}
