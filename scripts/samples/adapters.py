"""Adapters with random weights."""

from __future__ import annotations

import json
from pathlib import Path


def save_random_adapter(folder: Path, model: Path, rank: int, seed: int, size: float = 0.01) -> Path:
    """Write an adapter of every linear map of a model's layers, as PEFT does. Return its folder.

    Args:
        size: the standard deviation of its numbers.
    """
    import torch
    from safetensors.torch import save_file

    from pageant.models.adapters.checkpoint import PREFIX, is_adaptable
    from pageant.models.checkpoint import Checkpoint, resolve

    folder.mkdir(parents=True)
    chance, tensors = torch.Generator().manual_seed(seed), {}
    for name, place in Checkpoint(resolve(str(model))).decoder()[1].items():
        if is_adaptable(place):
            for part, shape in (("A", (rank, place.inputs)), ("B", (place.outputs, rank))):
                key = f"{PREFIX}{name.removesuffix('.weight')}.lora_{part}.weight"
                tensors[key] = size * torch.randn(*shape, generator=chance)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
