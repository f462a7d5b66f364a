"""Weights that pass from one life of an executor to the next in the same process.

An executor computes with one model all its life. So what it computes with other weights, after a sleep or when they
were replaced, is of another epoch, whose KV cache is empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pageant.actors.executor.kept_weights import KeptWeights
from pageant.actors.executor.options import load_weights
from pageant.actors.executor.runners.memory import MARGIN_BYTES_MIN, available_bytes
from pageant.actors.runtime import Actor, receives
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import BadRequest
from pageant.protocol.lifecycle import DropPrepared, PreparedDropped, PrepareWeights, WeightsPrepared

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel
    from pageant.actors.executor.runners.model_runner import ModelRunner

BESIDE_SHARE = 1.2  # of the weights' size: the memory that as many others need while they are loaded

READ_BYTES = 8 << 20


class Succeeding(Actor):
    """The part of an executor that takes over weights, and leaves them."""

    loads_weights = True
    """Whether `open_runner` loads the model, so that its weights can be loaded apart from the rest."""

    _runner: ModelRunner
    _inherited: LoadedModel | None = None
    """Weights that were loaded before this life, for its runner."""
    _prepared: LoadedModel | None = None
    """Weights that were loaded for the next life."""

    def _take_inherited(self) -> dict[str, Any]:
        """Return the runner's argument `loaded`, if there are weights for it."""
        loaded, self._inherited = self._inherited, None
        return {} if loaded is None else {"loaded": loaded}

    def inherit(self, left: object) -> None:
        """Take over weights that were kept for this life, if it computes with them."""
        if isinstance(left, KeptWeights) and left.is_of(self.options):
            self._inherited = left.model

    def leave(self) -> object | None:
        """Leave those weights that were prepared for the next, or else the present ones to an executor that sleeps."""
        prepared, self._prepared = self._prepared, None
        return self._runner.leave() if prepared is None else KeptWeights(prepared)

    @receives(concurrent=True)
    async def prepare_weights(self, request: PrepareWeights) -> WeightsPrepared:
        """Load other weights beside the present ones, while steps are computed, if there is memory for both."""
        self._prepared = None
        needed = self._runner.memory_bytes.get("weights", 0)
        if not self.loads_weights:
            return WeightsPrepared(loaded=False, why="this executor loads no weights apart from the rest")
        if self.options.num_members > 1:
            return WeightsPrepared(
                loaded=False, why="each of a group of executors has a share of the weights"
            )
        if self.options.torch_device != "cpu":
            await self.offload_beside("weights", _read_files, Path(request.folder))
            return WeightsPrepared(loaded=False, why="the KV cache has the device's memory")
        if available_bytes() < needed * BESIDE_SHARE + MARGIN_BYTES_MIN:
            return WeightsPrepared(loaded=False, why="there is no memory for two models")
        options = msgspec.structs.replace(self.options, model=request.folder, weight_version=request.version)
        try:
            self._prepared = await self.offload_beside("weights", load_weights, options)
        except CheckpointError as error:
            raise BadRequest(str(error), "folder") from None
        return WeightsPrepared(loaded=True)

    @receives
    def drop_prepared(self, request: DropPrepared) -> PreparedDropped:
        """Forget what was prepared."""
        self._prepared = None
        return PreparedDropped()


def _read_files(folder: Path) -> None:
    """Have the system hold a checkpoint's files in memory that it has to spare: they are read sooner then."""
    buffer = bytearray(READ_BYTES)
    for path in Checkpoint(folder).weight_files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
