"""Adapters as PEFT saves them, made at random, and what they make of a model when they are merged into it."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """A folder, and the model that it stands for."""

    path: Path
    merged: PreTrainedModel

    def change(self, **changes: Any) -> None:
        """Changes keys of its configuration."""
        path = self.path / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_adapter(
    path: Path,
    model: PreTrainedModel,
    modules: tuple[str, ...],
    seed: int = 0,
    size: float = 0.1,
    **config: Any,
) -> Adapter:
    """Saves an adapter of some of a model's modules, by the ends of their names.

    Args:
        size: the standard deviation of its numbers.
        config: keys of its configuration.
    """
    settings = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", "target_modules": [*modules]}
    settings |= config
    (path / "adapter_config.json").write_text(json.dumps(settings))
    merged, tensors = copy.deepcopy(model), {}
    random = torch.Generator().manual_seed(seed)
    for module in [module for module, _ in merged.named_modules() if module.endswith(modules)]:
        rank, alpha = _patterned(settings, module)
        weight = merged.get_submodule(module).weight
        is_transposed = type(merged.get_submodule(module)).__name__ == "Conv1D"
        outputs, inputs = weight.T.shape if is_transposed else weight.shape
        shapes = (rank, inputs), (outputs, rank)
        down, up = (size * torch.randn(*shape, generator=random) for shape in shapes)
        added = alpha / (rank**0.5 if settings.get("use_rslora") else rank) * up @ down
        weight.data += added.T if is_transposed else added
        tensors |= {f"{PREFIX}{module}.lora_{part}.weight": one for part, one in (("A", down), ("B", up))}
    assert tensors, f"no module of the model ends with any of {modules}"
    save_file(tensors, path / "adapter_model.safetensors")
    return Adapter(path, merged)


def _patterned(settings: dict[str, Any], module: str) -> tuple[int, float]:
    """The rank and the alpha of a module, where patterns are ends of names."""
    rank, alpha = (
        next((value for end, value in settings.get(key, {}).items() if module.endswith(end)), default)
        for key, default in (("rank_pattern", settings["r"]), ("alpha_pattern", settings["lora_alpha"]))
    )
    return rank, alpha
