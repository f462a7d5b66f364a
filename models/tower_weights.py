"""Weights of towers: modules of transformers that turn images or sounds into rows for a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError

__all__ = ["fill_tower"]

_PREFIXES = ("", "model.")
NO_OTHERS: Mapping[str, str] = {}


def fill_tower(model: torch.nn.Module, checkpoint: Checkpoint, older: Mapping[str, str] = NO_OTHERS) -> None:
    """Copy a checkpoint's weights into the modules of a tower.

    Args:
        older: beginnings of names here, with those that older checkpoints have.

    Raises:
        CheckpointError: one is missing, or has another shape.
    """
    from safetensors import safe_open

    saved = checkpoint.saved_tensors
    for name, parameter in model.named_parameters():
        names = list(_names_of(name, older))
        found = next((saved[one] for one in names if one in saved), None)
        if found is None:
            raise CheckpointError(
                checkpoint.path, f"no {names[0]}", "the weights of the tower", "Download it whole."
            )
        if tuple(found.shape) != tuple(parameter.shape):
            raise CheckpointError(
                found.file,
                f"{found.name} of shape {list(found.shape)}",
                f"{list(parameter.shape)}",
                "Check that config.json belongs to the weights.",
            )
        with safe_open(found.file, framework="pt") as file, torch.no_grad():
            parameter.copy_(file.get_tensor(found.name))


def _names_of(name: str, older: Mapping[str, str]) -> Sequence[str]:
    """Return the names that a parameter may have in a checkpoint."""
    names = [name]
    for ours, theirs in older.items():
        if name.startswith(ours) and not name.startswith(theirs):
            names.append(theirs + name.removeprefix(ours))
    return [prefix + one for one in names for prefix in _PREFIXES]
