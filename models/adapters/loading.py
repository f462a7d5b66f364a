"""A decoder's adapters: their weights beside its own, and the steps that they take part in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pageant.kernels.low_rank import Addition, LowRank
from pageant.models.adapters.checkpoint import RANK_MAX, AdapterCheckpoint, Target
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.errors import CheckpointError
from pageant.models.native import NativeDecoder
from pageant.models.placing import as_rows
from pageant.models.projection import Projection
from pageant.models.sharding import Piece, pieces
from pageant.models.spec import DecoderSpec

__all__ = ["Adapters"]

VECTOR = 16  # numbers

Key = tuple[int, str]
"""A layer, and a module of it."""


class Adapters:
    """Adapters of one decoder, by name, in its dtype and on its device."""

    def __init__(
        self,
        folders: Mapping[str, str],
        checkpoint: Checkpoint,
        decoder: Decoder,
        rank_max: int = RANK_MAX,
    ) -> None:
        """Loads them. Raises CheckpointError, see `AdapterCheckpoint.targets`."""
        self._checkpoint, self._decoder, self._rank_max = checkpoint, decoder, rank_max
        self._projections: Mapping[Key, Projection] = {}
        self._adapters: dict[str, dict[Key, LowRank]] = {}
        for name, folder in folders.items():
            self.add(name, folder)

    def add(self, name: str, folder: str) -> None:
        """Load another, beside whatever is computed meanwhile.

        Raises:
            CheckpointError: see `AdapterCheckpoint.targets`.
        """
        adapter = AdapterCheckpoint(Path(folder))
        targets = adapter.targets(self._checkpoint, self._rank_max)
        assert isinstance(self._decoder, NativeDecoder), "adapters of others are refused"
        self._projections = self._decoder.projections
        spec = self._checkpoint.decoder_spec()
        self._adapters[name] = _load(adapter.weights, targets, self._decoder, spec)

    def remove(self, name: str) -> None:
        """Forget one, which no step has any more."""
        self._adapters.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._adapters)

    def tensors(self) -> Iterator[Tensor]:
        """Yield all matrices, [rank, inputs] or [rank, outputs], in the decoder's dtype."""
        for adapter in self._adapters.values():
            for part in adapter.values():
                yield from (part.down, *part.ups)

    @property
    def num_bytes(self) -> int:
        """Return the bytes that their weights take."""
        return sum(part.nbytes for adapter in self._adapters.values() for part in adapter.values())

    @contextmanager
    def applied(self, tokens_of: Sequence[tuple[str, Tensor | None]]) -> Iterator[None]:
        """Give the decoder's forward passes adapters within the context; token places are int64 [N].

        Args:
            tokens_of: each adapter with its tokens of the step: see `Addition`. No token has two.
        """
        try:
            for name, tokens in tokens_of:
                for key, low_rank in self._adapters[name].items():
                    self._projections[key].additions.append(Addition(tokens, low_rank))
            yield
        finally:
            for projection in self._projections.values():
                projection.additions.clear()


def _load(
    file: Path, targets: Sequence[Target], decoder: NativeDecoder, spec: DecoderSpec
) -> dict[Key, LowRank]:
    """Read an adapter's matrices, those of one fused weight together: a rank's share of them, if it has one."""
    # What an adapter adds is one part of a sum, whatever segments the other has.
    shard = None if decoder.shard is None else replace(decoder.shard, segments=None)
    parts: defaultdict[Key, list[tuple[Target, Piece]]] = defaultdict(list)
    for target in targets:
        for piece in pieces(spec, shard, target.place):
            assert piece.place.layer is not None, "what is outside of the layers is refused"
            parts[piece.place.layer, target.place.name.removesuffix(".weight")].append((target, piece))
    try:
        with safe_open(file, framework="pt") as tensors:
            read = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(file, str(error), "a safetensors file", "Save the adapter again.") from error
    return {key: _fused(some, read).to(decoder.device, decoder.dtype) for key, some in parts.items()}


def _fused(parts: Sequence[tuple[Target, Piece]], tensors: Mapping[str, Tensor]) -> LowRank:
    """Return the adapters of one fused weight, scaled. A whole number of vectors of `down` is read at once.

    Rows of a rank's share are rows of `up`, and its columns are columns of what is saved as `down`.
    """
    down = torch.cat(
        [tensors[target.down].float()[:, slice(*piece.columns or (None, None))] for target, piece in parts]
    ).T
    return LowRank(
        F.pad(down, (0, -down.shape[1] % VECTOR)),
        tuple(
            target.scale * as_rows(tensors[target.up][slice(*piece.rows)].float(), piece.place).T
            for target, piece in parts
        ),
        tuple(piece.place.row for _, piece in parts),
    )
