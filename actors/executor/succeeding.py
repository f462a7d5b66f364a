"""Weights that pass from one life of an executor to the next in the same process.

An executor computes with one model all its life. So what it computes with other weights, after a sleep or when they
were replaced, is of another epoch, whose KV cache is empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pageant.actors.executor.kept_weights import KeptWeights
from pageant.actors.executor.loading import Loading
from pageant.actors.executor.options import runner_config
from pageant.actors.executor.runners.memory import MARGIN_BYTES_MIN, available_bytes
from pageant.actors.runtime import receives
from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import BadRequest
from pageant.protocol.lifecycle import DropPrepared, PreparedDropped, PrepareWeights, WeightsPrepared

if TYPE_CHECKING:
    from pageant.actors.executor.runners.loaded_model import LoadedModel
    from pageant.actors.executor.runners.model_runner import ModelRunner

BESIDE_SHARE = 1.2  # of the weights' size: the memory that as many others need while they are loaded

READ_BYTES = 8 << 20


class Succeeding(Loading):
    """The part of an executor, or of another member of its group, that takes over weights, and leaves them."""

    loads_weights = True
    """Whether the model is loaded from a checkpoint, so that its weights can be loaded apart from the rest."""

    _inherited: LoadedModel | None = None
    """Weights that were loaded before this life, for its runner."""
    _prepared: LoadedModel | None = None
    """Weights that were loaded for the next life."""

    def _present_runner(self) -> ModelRunner | None:
        """Return the runner that computes now; None before there is one."""
        raise NotImplementedError

    async def _prepare_elsewhere(self, request: PrepareWeights) -> WeightsPrepared:
        """Have the other members of the group load their shares of other weights."""
        return WeightsPrepared(loaded=True)

    async def _drop_elsewhere(self) -> None:
        """Have the other members of the group forget what they prepared."""

    def _take_inherited(self) -> dict[str, Any]:
        """Return the runner's argument `loaded`, if there are weights for it."""
        loaded, self._inherited = self._inherited, None
        return {} if loaded is None else {"loaded": loaded}

    def _share_of_weights(self) -> LoadedModel:
        """Return a member's share of the weights: that which was kept for this life, or one that is loaded now. For
        one of the actor's threads."""
        from pageant.actors.executor.runners.loaded_model import ModelKey

        kept, self._inherited = self._inherited, None
        is_right = kept is not None and kept.key == ModelKey.of(runner_config(self.options, self.rank))
        return kept if kept is not None and is_right else self._load_weights(self.options)

    def inherit(self, left: object) -> None:
        """Take over weights that were kept for this life, if it computes with them."""
        if isinstance(left, KeptWeights) and left.is_of(self.options):
            self._inherited = left.model

    def leave(self) -> object | None:
        """Leave those weights that were prepared for the next, or else the present ones to an executor that sleeps."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            return KeptWeights(prepared)
        runner = self._present_runner()
        return None if runner is None else runner.leave()

    @receives(concurrent=True)
    async def prepare_weights(self, request: PrepareWeights) -> WeightsPrepared:
        """Load other weights beside the present ones, while steps are computed, if there is memory for both.

        A group has prepared them when all of its members have. They load one after another, so that each finds how
        much memory the others have left.
        """
        self._prepared = None
        try:
            prepared = await self._prepare(request)
            if prepared.loaded:
                prepared = await self._prepare_elsewhere(request)
        except BaseException:
            self._prepared = None
            raise
        if not prepared.loaded:
            self._prepared = None
        return prepared

    async def _prepare(self, request: PrepareWeights) -> WeightsPrepared:
        """Load this member's own share of other weights."""
        runner = self._present_runner()
        if not self.loads_weights or runner is None:
            return WeightsPrepared(loaded=False, why="this executor loads no weights apart from the rest")
        if self.options.torch_device != "cpu":
            await self.offload_beside("weights", _read_files, Path(request.folder))
            return WeightsPrepared(loaded=False, why="the KV cache has the device's memory")
        needed = runner.memory_bytes.get("weights", 0)
        if available_bytes() < needed * BESIDE_SHARE + MARGIN_BYTES_MIN:
            return WeightsPrepared(loaded=False, why="there is no memory for two models")
        options = msgspec.structs.replace(self.options, model=request.folder, weight_version=request.version)
        try:
            self._prepared = await self.offload_beside("weights", self._load_weights, options)
        except CheckpointError as error:
            raise BadRequest(str(error), "folder") from None
        return WeightsPrepared(loaded=True)

    @receives(concurrent=True)
    async def drop_prepared(self, request: DropPrepared) -> PreparedDropped:
        """Forget what was prepared."""
        self._prepared = None
        await self._drop_elsewhere()
        return PreparedDropped()


def _read_files(folder: Path) -> None:
    """Have the system hold a checkpoint's files in memory that it has to spare: they are read sooner then."""
    buffer = bytearray(READ_BYTES)
    for path in Checkpoint(folder).weight_files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
