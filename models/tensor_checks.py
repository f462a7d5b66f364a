"""Checks of a checkpoint's tensors against its architecture, before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pageant.models.errors import CheckpointError
from pageant.models.names import Names
from pageant.models.ready import QUANTISED, ReadyWeights
from pageant.models.tensor_files import TensorInfo
from pageant.models.weights import Places

__all__ = ["DTYPES", "HEAD", "MISMATCH", "SavedWeights", "check_tensors"]

HEAD = "lm_head.weight"
"""A head's name, where it may be saved though it is the embedding."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Dtypes of weights that are computed with, by their names in files."""
MISMATCH = "Check that config.json and the weights belong together."

# Constants that older exports saved among the weights: they are computed here, or not needed.
_BUFFERS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


class SavedWeights(Protocol):
    """The weights of a checkpoint as its files have them."""

    @property
    def path(self) -> Path:
        """Return the folder."""

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """Return its files, in the order of their names."""

    @property
    def names(self) -> Names | None:
        """Return the names of its tensors; None where there is no architecture."""

    @property
    def ready(self) -> ReadyWeights | None:
        """Return its quantised weights; None where it has none."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return all tensors in the files, by the names that the architecture has for them."""


def check_tensors(checkpoint: SavedWeights, places: Places, *, tied: bool) -> None:
    """Find tensors that are missing, unknown, or of another shape or dtype. Reads scales of quantised weights.

    Args:
        places: where each tensor of the decoder goes.
        tied: the head is the embedding, and may be saved all the same.

    Raises:
        CheckpointError: names the tensor.
    """
    ready, names, tensors = checkpoint.ready, checkpoint.names, checkpoint.tensors
    if ready is None:
        _refuse_undescribed(tensors)
    modules, parts = ({}, frozenset[str]()) if ready is None else (ready.modules, ready.parts)
    dense = {name: place for name, place in places.items() if name not in modules}
    missing = [name for name in dense if name not in tensors]
    if missing:
        raise _wrong_tensors(checkpoint.path, "missing", missing, "every tensor of the architecture")
    copies = {HEAD} if tied else set()
    num_layers = 1 + max((place.layer for place in places.values() if place.layer is not None), default=-1)
    extra = [
        info.name
        for name, info in tensors.items()
        if name not in dense
        and name not in parts
        and name not in copies
        and not name.endswith(_BUFFERS)
        and not (names is not None and names.is_ignored(name, num_layers))
    ]
    if extra:
        raise _wrong_tensors(checkpoint.path, "unknown", extra, "only tensors of the architecture")
    for name, place in dense.items():
        info = tensors[name]
        if info.shape != place.shape:
            raise _wrong_tensor(info, f"shape {list(info.shape)}", f"{list(place.shape)}")
        if info.dtype not in DTYPES:
            raise _wrong_tensor(info, f"dtype {info.dtype}", f"one of {', '.join(DTYPES)}")
    if ready is not None:
        ready.check_values()


def _refuse_undescribed(tensors: Mapping[str, TensorInfo]) -> None:
    """Raise CheckpointError for quantised tensors where no configuration says how they were made."""
    found = next((info for name, info in tensors.items() if name.endswith(QUANTISED)), None)
    if found is not None:
        raise CheckpointError(
            found.file,
            f"the quantised tensor {found.name}, but no quantization_config in config.json",
            "a configuration that says how it was made",
            "Download config.json again, or use the model's original checkpoint.",
        )


def _wrong_tensors(path: Path, kind: str, names: list[str], expected: str) -> CheckpointError:
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return CheckpointError(path, f"{kind} tensors: {listed}", expected, MISMATCH)


def _wrong_tensor(info: TensorInfo, found: str, expected: str) -> CheckpointError:
    return CheckpointError(info.file, f"{info.name} has {found}", expected, MISMATCH)
