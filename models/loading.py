"""Weights from safetensors straight into their fused places: memory never holds the model twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.quantized import QuantizedWeight
from pageant.kernels.tiled import TiledWeight
from pageant.models.checkpoint import HEAD, Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.errors import CheckpointError
from pageant.models.native import NativeDecoder
from pageant.models.quantization import QUANTIZATIONS, Quantization
from pageant.models.tensor_files import TensorInfo
from pageant.models.weights import Place, Places

__all__ = ["as_rows", "load_decoder"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Progress = Callable[[int, int], None]

MAPPED_BYTES = 256 << 20
"""Of a file, about how much of what was copied may be in memory still."""


def load_decoder(
    checkpoint: Checkpoint,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    *,
    kernels: Kernels,
    max_model_len: int | None = None,
    quantization: Quantization | None = None,
    progress: Progress | None = None,
) -> Decoder:
    """Return the decoder of a checkpoint, its weights cast to `dtype` ("auto" is the checkpoint's own).

    With a `quantization`, each tensor is quantised as it is copied (see `quantization`).
    `max_model_len` is how many positions are served, where it is fewer than the checkpoint's: some rotary
    embeddings depend on it. `progress` is called with the bytes of weights read so far and in all. Files
    are memory-mapped, a part at a time, and copied tensor by tensor, cast on the way.
    A checkpoint without an architecture of its own here is loaded and run by transformers (`fallback`).
    Raises CheckpointError (see `Checkpoint.check`), which also refuses to quantise such a one, and ValueError
    for an unknown dtype or quantization.
    """
    torch_dtype = _DTYPES.get(checkpoint.dtype if dtype == "auto" else dtype)
    if torch_dtype is None:
        raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join(('auto', *_DTYPES))}")
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(f"unknown quantization {quantization!r}: expected one of {', '.join(QUANTIZATIONS)}")
    checkpoint.check()
    if checkpoint.architecture is None:
        if quantization is not None:
            raise CheckpointError(
                checkpoint.path,
                f"quantization {quantization} for {checkpoint.config['architectures'][0]}, which transformers runs",
                "no quantization",
                "Leave it out, or add a file to models/architectures.",
            )
        from pageant.models.fallback import load_fallback  # it imports transformers

        return load_fallback(checkpoint, torch_dtype, torch.device(device), kernels, progress)
    spec, places = checkpoint.decoder()
    if spec.tie_word_embeddings:
        _check_tied_head(checkpoint, places)
    decoder = NativeDecoder(spec, torch_dtype, device, kernels, max_model_len, quantization)
    report = _Report(progress, sum(checkpoint.tensors[name].num_bytes for name in places))
    for file in checkpoint.weight_files:
        tensors = [
            (info, places[name])
            for name, info in checkpoint.tensors.items()
            if info.file == file and name in places
        ]
        for part in _parts(tensors):
            _load_part(decoder, file, part, report)
    return decoder


def _check_tied_head(checkpoint: Checkpoint, places: Places) -> None:
    """Raise CheckpointError for a head that is saved beside the embedding it is said to be, and is another."""
    embedding = next(name for name, place in places.items() if place.name == "embedding.weight")
    if HEAD not in checkpoint.tensors or embedding == HEAD:
        return
    head, tied = (_read(checkpoint.tensors[name]) for name in (HEAD, embedding))
    if head.shape != tied.shape or not torch.equal(head.to(tied.dtype), tied):
        raise CheckpointError(
            checkpoint.path,
            f"{HEAD}, which is not {embedding}",
            "the same, since tie_word_embeddings is true",
            'If the head is meant, set "tie_word_embeddings": false in config.json.',
        )


def _read(info: TensorInfo) -> Tensor:
    """Return one tensor of a file, memory-mapped."""
    with safe_open(info.file, framework="pt") as tensors:
        tensor: Tensor = tensors.get_tensor(info.name)
        return tensor


def _parts(tensors: list[tuple[TensorInfo, Place]]) -> Iterator[list[tuple[TensorInfo, Place]]]:
    """Some tensors of a file at a time, in order: of `MAPPED_BYTES`, if no tensor alone is larger."""
    part: list[tuple[TensorInfo, Place]] = []
    num_bytes = 0
    for info, place in tensors:
        if part and num_bytes + info.num_bytes > MAPPED_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append((info, place))
        num_bytes += info.num_bytes
    yield part


def _load_part(
    decoder: NativeDecoder, file: Path, part: list[tuple[TensorInfo, Place]], report: _Report
) -> None:
    """Copy some tensors of a file. Its mapping ends with the function, and with it the pages that were read."""
    try:
        with safe_open(file, framework="pt") as tensors:
            for info, place in part:
                _copy(decoder, tensors.get_tensor(info.name), place)
                report.read(info.num_bytes)
    except SafetensorError as error:
        raise CheckpointError(file, str(error), "a safetensors file", "Download it again.") from error


def _copy(decoder: NativeDecoder, tensor: Tensor, place: Place) -> None:
    """Copy one tensor into its place."""
    weight = decoder.weight(place)
    if isinstance(weight, QuantizedWeight):
        decoder.kernels.quantize(_matrix(tensor, place).to(decoder.device), weight)
    elif isinstance(weight, TiledWeight):
        weight.fill(_matrix(tensor, place))
    else:
        _fill(weight, tensor, place.plus)


def _fill(weight: Tensor, tensor: Tensor, plus: float) -> None:
    """Copy a checkpoint's tensor into its place, cast on the way. Mutates weight."""
    weight.copy_(tensor.view(weight.shape))
    if plus:
        weight.add_(plus)


def _matrix(tensor: Tensor, place: Place) -> Tensor:
    """A checkpoint's tensor as the decoder has it: [out, in]."""
    rows = as_rows(tensor, place.interleaved_heads)
    return rows.T if place.transposed else rows


def as_rows(tensor: Tensor, interleaved_heads: int | None) -> Tensor:
    """A checkpoint's matrix [rows, columns] with its rows in the decoder's order; see `Place.interleaved_heads`."""
    if interleaved_heads is None:
        return tensor
    return tensor.view(interleaved_heads, 3, -1, tensor.shape[1]).transpose(0, 1).flatten(0, 2)


class _Report:
    """Bytes read so far, told to whom it concerns."""

    def __init__(self, progress: Progress | None, bytes_total: int) -> None:
        self._progress = progress
        self._bytes_total = bytes_total
        self._bytes_read = 0

    def read(self, num_bytes: int) -> None:
        self._bytes_read += num_bytes
        if self._progress is not None:
            self._progress(self._bytes_read, self._bytes_total)
