"""Adapters as PEFT saves them, made at random, and what they make of a model when they are merged into it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
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


@pytest.fixture
def save_adapter(tmp_path: Path) -> Callable[..., Adapter]:
    """Saves an adapter of some of a model's modules, by the ends of their names."""

    def save(
        model: PreTrainedModel,
        modules: tuple[str, ...],
        *,
        name: str = "adapter",
        seed: int = 0,
        **config: Any,
    ) -> Adapter:
        path = tmp_path / name
        path.mkdir()
        settings = {
            "peft_type": "LORA",
            "r": 3,
            "lora_alpha": 6,
            "bias": "none",
            "target_modules": [*modules],
        }
        settings |= config
        (path / "adapter_config.json").write_text(json.dumps(settings))
        merged, tensors = copy.deepcopy(model), {}
        random = torch.Generator().manual_seed(seed)
        for module in [module for module, _ in merged.named_modules() if module.endswith(modules)]:
            rank, alpha = _patterned(settings, module)
            weight = merged.get_submodule(module).weight
            outputs, inputs = weight.shape
            if is_transposed := type(merged.get_submodule(module)).__name__ == "Conv1D":
                inputs, outputs = outputs, inputs
            down, up = (
                0.1 * torch.randn(*shape, generator=random) for shape in ((rank, inputs), (outputs, rank))
            )
            scale = alpha / (rank**0.5 if settings.get("use_rslora") else rank)
            added: Tensor = scale * up @ down
            weight.data += added.T if is_transposed else added
            tensors |= {f"{PREFIX}{module}.lora_{part}.weight": one for part, one in (("A", down), ("B", up))}
        assert tensors, f"no module of the model ends with any of {modules}"
        save_file(tensors, path / "adapter_model.safetensors")
        return Adapter(path, merged)

    return save


def _patterned(settings: dict[str, Any], module: str) -> tuple[int, float]:
    """The rank and the alpha of a module, where patterns are ends of names."""
    rank, alpha = (
        next((value for end, value in settings.get(key, {}).items() if module.endswith(end)), default)
        for key, default in (("rank_pattern", settings["r"]), ("alpha_pattern", settings["lora_alpha"]))
    )
    return rank, alpha
