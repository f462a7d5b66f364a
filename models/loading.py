"""Weights from files straight into their fused places: memory never holds the model twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import Kernels
from pageant.kernels.quantized import QuantizedWeight
from pageant.kernels.tiled import TiledWeight
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.errors import CheckpointError
from pageant.models.hearing_decoder import HearingDecoder
from pageant.models.mapped_files import MappedFiles
from pageant.models.native import NativeDecoder
from pageant.models.placing import as_rows, fill_plain
from pageant.models.quantization import QUANTIZATIONS, Quantization
from pageant.models.ready.filling import fill
from pageant.models.ready.module import ReadyModule
from pageant.models.ready.weights import Form
from pageant.models.sharding import Piece, Shard, pieces
from pageant.models.share_checks import why_not_shared, why_not_staged
from pageant.models.spec import DecoderSpec
from pageant.models.stages import Stage
from pageant.models.tensor_checks import HEAD, SavedWeights
from pageant.models.tensor_files import TensorInfo
from pageant.models.weights import Place, Places

__all__ = ["fill_decoder", "load_decoder", "load_ends"]

log = logging.getLogger("pageant.models")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Progress = Callable[[int, int], None]

_ENDS = Shard(0, 1, stage=Stage(0, 1, (0,)))
"""All of a model but its layers."""

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
    head_quantization: Quantization | None = None,
    progress: Progress | None = None,
    shard: Shard | None = None,
) -> Decoder:
    """Return the decoder of a checkpoint, its weights cast to `dtype` ("auto" is the checkpoint's own).

    With a `quantization`, each tensor is quantised as it is copied (see `quantization`). A checkpoint that comes
    quantised (`ready`) is repacked while it is read, and takes none. With a `head_quantization`, embedding and head are
    quantised so, whatever the layers are; a checkpoint whose own are quantised takes none.
    `max_model_len` is how many positions are served, where it is fewer than the checkpoint's: some rotary
    embeddings depend on it. `progress` is called with the bytes of weights read so far and in all. Files
    are memory-mapped, a part at a time, and copied tensor by tensor, cast on the way.
    A checkpoint without an architecture of its own here is loaded and run by transformers (`fallback`).
    With a `shard`, the decoder is that of a rank's share of the model, and computes once it has joined the others.
    Raises CheckpointError (see `Checkpoint.check`), which also refuses to quantise such a one, and ValueError
    for an unknown dtype or quantization.
    """
    torch_dtype = _DTYPES.get(checkpoint.dtype if dtype == "auto" else dtype)
    if torch_dtype is None:
        raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join(('auto', *_DTYPES))}")
    for one in (quantization, head_quantization):
        if one not in (None, *QUANTIZATIONS):
            raise ValueError(f"unknown quantization {one!r}: expected one of {', '.join(QUANTIZATIONS)}")
    checkpoint.refuse_quantization(quantization)
    checkpoint.check()
    checkpoint.refuse_head_quantization(head_quantization)
    if shard is not None:
        _refuse_shard(checkpoint, shard)
    if checkpoint.architecture is None:
        wanted = quantization or head_quantization
        if wanted is not None:
            raise CheckpointError(
                checkpoint.path,
                f"quantization {wanted} for {checkpoint.config['architectures'][0]}, which transformers runs",
                "no quantization",
                "Leave it out, or add a file to models/architectures.",
            )
        from pageant.models.fallback import load_fallback  # it imports transformers

        return load_fallback(checkpoint, torch_dtype, torch.device(device), kernels, progress)
    spec, places = checkpoint.decoder()
    if spec.attention.latent is not None and kernels.name == "triton":
        raise CheckpointError(
            checkpoint.path,
            f"latent attention on {device}, which the triton kernels do not compute in this version",
            "a CPU, or the reference kernels",
            "Place the executor on a CPU.",
        )
    if spec.tie_word_embeddings:
        _check_tied_head(checkpoint, places)
    ready = checkpoint.ready
    forms = None if ready is None else ready.forms
    kind = NativeDecoder if spec.encoder_rows is None else HearingDecoder
    decoder = kind(
        spec, torch_dtype, device, kernels, max_model_len, quantization, head_quantization, forms, shard
    )
    fill_decoder(decoder, checkpoint, places, spec, shard, progress)
    if ready is not None:
        log.info("%s: %s", checkpoint.path.name, ready.description)
    if checkpoint.drafting:
        count = len(checkpoint.drafting)
        log.info(
            "%s: %d tensors of layers that only draft (MTP) are passed over; speculation of method mtp reads them",
            checkpoint.path.name,
            count,
        )
    return decoder


def load_ends(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    *,
    kernels: Kernels,
    quantization: Quantization | None = None,
    head_quantization: Quantization | None = None,
) -> NativeDecoder:
    """Return a decoder of a model's embedding, final norm and head alone, for drafts beside a share of the model.

    The arguments are those of `load_decoder`, which has checked the checkpoint.
    """
    spec, places = checkpoint.decoder()
    forms = None if checkpoint.ready is None else checkpoint.ready.forms
    decoder = NativeDecoder(spec, dtype, device, kernels, None, quantization, head_quantization, forms, _ENDS)
    fill_decoder(decoder, checkpoint, places, spec, _ENDS)
    return decoder


def fill_decoder(
    decoder: NativeDecoder,
    weights: SavedWeights,
    places: Places,
    spec: DecoderSpec,
    shard: Shard | None = None,
    progress: Progress | None = None,
) -> None:
    """Copy tensors of a checkpoint to their places in a decoder, whose weights are mutated.

    Args:
        spec: of the whole model.
        shard: the rank's, where the decoder is a share of it.
        progress: see `load_decoder`.
    """
    items = list(_items(weights, places))
    report = _Report(progress, sum(item.num_bytes for item in items))
    for some in _parts(items):
        _load_part(decoder, some, report, lambda place: pieces(spec, shard, place))


def _refuse_shard(checkpoint: Checkpoint, shard: Shard) -> None:
    """Raise CheckpointError for a checkpoint that cannot be shared out so."""
    stage = shard.stage
    objections = {
        f"tensor_parallel {shard.ranks}": why_not_shared(
            checkpoint, shard.ranks, shard.segments, shard.experts
        )
        if shard.is_joint
        else "",
        f"pipeline_parallel {stage.count}": why_not_staged(checkpoint, stage.count, stage.layers_of_each),
    }
    for option, objection in objections.items():
        if objection:
            found, _, expected = objection.partition("; expected ")
            change = f"Change {option.partition(' ')[0]}."
            raise CheckpointError(checkpoint.path, f"{option}: {found}", expected, change)


@dataclass(frozen=True, slots=True)
class _Item:
    """Tensors that are read at once: a dense one, or the parts of a quantised module."""

    parts: Mapping[str, TensorInfo]
    place: Place
    module: ReadyModule | None = None
    form: Form | None = None

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for info in self.parts.values())


def _items(weights: SavedWeights, places: Places) -> Iterator[_Item]:
    """Yield all that has a place, in the order of the files. A module comes where its largest part is."""
    ready, tensors = weights.ready, weights.tensors
    modules = {} if ready is None else ready.modules
    leaders = {
        max(module.parts.values(), key=lambda info: info.num_bytes).name: name
        for name, module in modules.items()
    }
    for file in weights.weight_files:
        for name, info in tensors.items():
            if info.file != file:
                continue
            if info.name in leaders and ready is not None:
                weight = leaders[info.name]
                module, place = modules[weight], places[weight]
                yield _Item(module.parts, place, module, ready.forms[place.layer, place.name])
            elif name in places and name not in modules:
                yield _Item({name: info}, places[name])


def _check_tied_head(checkpoint: Checkpoint, places: Places) -> None:
    """Raise CheckpointError for a head that is saved beside the embedding it is said to be, and is another."""
    embedding = next(name for name, place in places.items() if place.name == "embedding.weight")
    if HEAD not in checkpoint.tensors or embedding == HEAD:
        return
    with MappedFiles() as files:
        head, tied = (files.read(checkpoint.tensors[name]) for name in (HEAD, embedding))
        are_one = head.shape == tied.shape and torch.equal(head.to(tied.dtype), tied)
        del head, tied
    if not are_one:
        raise CheckpointError(
            checkpoint.path,
            f"{HEAD}, which is not {embedding}",
            "the same, since tie_word_embeddings is true",
            'If the head is meant, set "tie_word_embeddings": false in config.json.',
        )


def _parts(items: list[_Item]) -> Iterator[list[_Item]]:
    """Some items at a time, in order: of `MAPPED_BYTES`, if no item alone is larger."""
    part: list[_Item] = []
    num_bytes = 0
    for item in items:
        if part and num_bytes + item.num_bytes > MAPPED_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(item)
        num_bytes += item.num_bytes
    yield part


def _load_part(
    decoder: NativeDecoder,
    items: list[_Item],
    report: _Report,
    pieces_of: Callable[[Place], Iterator[Piece]],
) -> None:
    """Copy some items. The files' mappings end with the function, and with them the pages that were read."""
    with MappedFiles() as files:
        for item in items:
            tensors = {role: files.read(info) for role, info in item.parts.items()}
            if item.module is None or item.form is None:
                (tensor,) = tensors.values()
                for piece in pieces_of(item.place):
                    _copy(decoder, _cut(tensor, piece), piece.place)
            else:
                for piece in pieces_of(item.place):
                    room = decoder.weight(piece.place)
                    fill(room, item.module, tensors, item.form, piece.place, decoder, *piece.ranges)
            report.read(item.num_bytes)


def _cut(tensor: Tensor, piece: Piece) -> Tensor:
    """Return a view of a part of a checkpoint's tensor, of a file's mapping: the rest is not read.

    Where the vocabulary ends within the part, it is a copy with rows of zeros behind.
    """
    rows, columns = slice(*piece.rows), slice(*piece.columns or (None, None))
    if tensor.dim() == 1:
        return tensor[rows]
    part = tensor[columns, rows] if piece.place.transposed else tensor[rows, columns]
    return F.pad(part, (0, 0, 0, piece.padding)) if piece.padding else part


def _copy(decoder: NativeDecoder, tensor: Tensor, place: Place) -> None:
    """Copy one tensor into its place."""
    weight = decoder.weight(place)
    if isinstance(weight, QuantizedWeight):
        decoder.kernels.quantize(_matrix(tensor, place).to(decoder.device), weight)
    elif isinstance(weight, TiledWeight):
        weight.fill(_matrix(tensor, place))
    else:
        fill_plain(weight, tensor, place)


def _matrix(tensor: Tensor, place: Place) -> Tensor:
    """A checkpoint's tensor as the decoder has it: [out, in]."""
    return as_rows(tensor.T if place.transposed else tensor, place)


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
